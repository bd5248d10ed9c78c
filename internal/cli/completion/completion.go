// Package completion is `kvconnd completion`: it prints scripts by which shells complete command lines. They are made from
// the parser's own model and need no other program.
package completion

import (
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/terminal"
)

// Cmd is `kvconnd completion`.
type Cmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"Shell: bash, zsh or fish."`
}

// Help is shown below the command's summary.
func (*Cmd) Help() string {
	return `For this shell alone, or in the file that the shell reads at its start:

  bash   source <(kvconnd completion bash)
  zsh    source <(kvconnd completion zsh), after compinit
  fish   kvconnd completion fish | source

For all users: write what is printed to /usr/share/bash-completion/completions/kvconnd, to _kvconnd in a folder of
zsh's fpath, or to /usr/share/fish/vendor_completions.d/kvconnd.fish.`
}

// Run prints the script.
func (c *Cmd) Run(ctx *kong.Context, std *terminal.Streams) error {
	places := placesOf(ctx.Model.Node)
	var script string
	switch c.Shell {
	case "bash":
		script = bash(ctx.Model.Name, places)
	case "zsh":
		script = zsh(ctx.Model.Name, places)
	default:
		script = fish(ctx.Model.Name, places)
	}
	_, err := fmt.Fprint(std.Out, script)
	return err
}

// place is a command, or the program itself, with what may follow there.
type place struct {
	at       string // the words of the command, each after a space
	commands []word
	flags    []flag
}

type word struct{ name, help string }

type flag struct {
	word
	// takesValue is set unless the flag is a switch; values are those that it may have, empty for any.
	takesValue bool
	values     []string
}

// placesOf lists the commands below a node that people see.
func placesOf(n *kong.Node) []place {
	p := place{}
	if path := n.Path(); path != "" {
		p.at = " " + path
	}
	for _, group := range n.AllFlags(true) {
		for _, f := range group {
			one := flag{word: word{f.Name, summary(f.Help)}, takesValue: !f.IsBool() && !f.IsCounter()}
			if one.takesValue && f.Enum != "" {
				one.values = f.EnumSlice()
			}
			p.flags = append(p.flags, one)
		}
	}
	var below []place
	for _, child := range n.Children {
		if child.Type == kong.CommandNode && !child.Hidden {
			p.commands = append(p.commands, word{child.Name, summary(child.Help)})
			below = append(below, placesOf(child)...)
		}
	}
	return append([]place{p}, below...)
}

// summary is the first sentence of a help text.
func summary(help string) string {
	if i := strings.Index(help, ". "); i >= 0 {
		help = help[:i]
	}
	return strings.TrimSuffix(strings.Join(strings.Fields(help), " "), ".")
}

// words are what may follow at a place: commands, then flags.
func (p *place) words() string {
	var list []string
	for _, c := range p.commands {
		list = append(list, c.name)
	}
	for _, f := range p.flags {
		list = append(list, "--"+f.name)
	}
	return strings.Join(list, " ")
}

// quote is a text as a word of any of the shells.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
