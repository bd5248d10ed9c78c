package completion

import (
	"fmt"
	"strings"
)

// walk are the cases of a statement that goes from place to place by the words of a line.
func walk(b *strings.Builder, places []place, set string) {
	for _, p := range places {
		for _, c := range p.commands {
			at := p.at + " " + c.name
			fmt.Fprintf(b, "      %s) %s ;;\n", quote(at), fmt.Sprintf(set, quote(at)))
		}
	}
}

// values are the cases of flags that take a value: the statement for those that there are, or that for any file.
func values(b *strings.Builder, places []place, these func(list string) string, file string) {
	for _, p := range places {
		var any []string
		for _, f := range p.flags {
			at := quote(p.at + " --" + f.name)
			switch {
			case !f.takesValue:
			case len(f.values) == 0:
				any = append(any, at)
			default:
				fmt.Fprintf(b, "    %s) %s; return ;;\n", at, these(strings.Join(f.values, " ")))
			}
		}
		if len(any) > 0 {
			fmt.Fprintf(b, "    %s) %s; return ;;\n", strings.Join(any, "|"), file)
		}
	}
}

// bash leaves COMPREPLY empty where a file may follow: readline completes files then.
func bash(program string, places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# bash completion of %[1]s, made by '%[1]s completion bash'
_%[1]s() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" at='' w='' words=''
  COMPREPLY=()
  for w in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$at $w" in
`, program)
	walk(&b, places, "at=%s")
	b.WriteString("    esac\n  done\n  case \"$at $prev\" in\n")
	values(&b, places, func(list string) string { return `COMPREPLY=($(compgen -W ` + quote(list) + ` -- "$cur"))` }, ":")
	b.WriteString("  esac\n  case \"$at\" in\n")
	for _, p := range places {
		fmt.Fprintf(&b, "    %s) words=%s ;;\n", quote(p.at), quote(p.words()))
	}
	fmt.Fprintf(&b, "  esac\n  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\ncomplete -o default -F _%[1]s %[1]s\n", program)
	return b.String()
}

func zsh(program string, places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `#compdef %[1]s
# zsh completion of %[1]s, made by '%[1]s completion zsh'
_%[1]s() {
  local at='' w=''
  for w in "${(@)words[2,CURRENT-1]}"; do
    case "$at $w" in
`, program)
	walk(&b, places, "at=%s")
	b.WriteString("    esac\n  done\n  case \"$at ${words[CURRENT-1]}\" in\n")
	values(&b, places, func(list string) string { return "compadd -- " + list }, "_files")
	b.WriteString("  esac\n  case \"$at\" in\n")
	for _, p := range places {
		fmt.Fprintf(&b, "    %s) compadd -- %s || _files ;;\n", quote(p.at), p.words())
	}
	fmt.Fprintf(&b, "  esac\n}\nif [[ \"$funcstack[1]\" == _%[1]s ]]; then\n  _%[1]s \"$@\"\nelse\n  compdef _%[1]s %[1]s\nfi\n", program)
	return b.String()
}

func fish(program string, places []place) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# fish completion of %[1]s, made by '%[1]s completion fish'
function __%[1]s_at
  set -l at ''
  set -l words (commandline -opc)
  set -e words[1]
  for w in $words
    switch "$at $w"
`, program)
	for _, p := range places {
		for _, c := range p.commands {
			at := fishQuote(p.at + " " + c.name)
			fmt.Fprintf(&b, "      case %s\n        set at %s\n", at, at)
		}
	}
	b.WriteString("    end\n  end\n  test \"$at\" = \"$argv[1]\"\nend\n")
	for _, p := range places {
		when := fmt.Sprintf("complete -c %s -n %s", program, fishQuote(fmt.Sprintf("__%s_at %s", program, fishQuote(p.at))))
		for _, c := range p.commands {
			fmt.Fprintf(&b, "%s -f -a %s -d %s\n", when, c.name, fishQuote(c.help))
		}
		for _, f := range p.flags {
			fmt.Fprintf(&b, "%s -l %s -d %s", when, f.name, fishQuote(f.help))
			switch {
			case len(f.values) > 0:
				fmt.Fprintf(&b, " -x -a %s", fishQuote(strings.Join(f.values, " ")))
			case f.takesValue:
				b.WriteString(" -r")
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// fishQuote is a text as a word of fish, where a backslash means itself unless a quote or backslash follows.
func fishQuote(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
}
