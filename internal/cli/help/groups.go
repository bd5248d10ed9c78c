// Package help puts commands and flags into groups, so that --help can be read.
package help

import (
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/manual"
)

// group is a title, and the names of what is below it; a name that ends in * is a beginning of names.
type group struct {
	title string
	names []string
}

// commands are the groups of commands.
func commands() []group {
	return []group{
		{"Run:", []string{"serve", "router"}},
		{"Set up:", []string{"config", "doctor", "demo", "key", "completion"}},
		{"Look and maintain:", []string{"status", "top", "cache", "explain", "fsck", "gc", "version"}},
		{"Measure and size:", []string{"bench", "replay"}},
	}
}

// flags are the groups of flags, by command. Flags without a group come first.
func flags() map[string][]group {
	serve, router := settings(manual.Serve()), settings(manual.Router())
	return map[string][]group{
		"serve": serve, "config show": serve, "router": router, "config router": router,
		"replay": {
			{"Trace and policies:", []string{
				"policies", "block-tokens", "timestamp-unit", "speed", "spread", "sequential", "full-blocks-only", "seed",
			}},
			{"Size of KV:", []string{"model", "kv-type", "bytes-per-token"}},
			{"Machines:", []string{"ranks", "nodes", "gpu-*", "disk-*", "object-*", "save-*", "prefill-*", "decode-*", "max-running", "overlap-loads", "always-load"}},
		},
	}
}

// settings are the groups that the manual has.
func settings(groups []manual.Group) []group {
	out := make([]group, len(groups))
	for i := range groups {
		out[i].title = groups[i].Title + ":"
		for j := range groups[i].Settings {
			out[i].names = append(out[i].names, groups[i].Settings[j].Flag())
		}
	}
	return out
}

// has reports whether a name is in the group.
func (g *group) has(name string) bool {
	for _, n := range g.names {
		if begin, ok := strings.CutSuffix(n, "*"); n == name || ok && strings.HasPrefix(name, begin) {
			return true
		}
	}
	return false
}

// Group puts the commands and flags of a parser into their groups.
func Group(k *kong.Kong) error {
	for _, node := range k.Model.Children {
		if g := find(commands(), node.Name); g != nil {
			node.Group = g
		}
	}
	byCommand := flags()
	for _, node := range k.Model.Leaves(false) {
		for _, flag := range node.Flags {
			if g := find(byCommand[node.Path()], flag.Name); g != nil {
				flag.Group = g
			}
		}
	}
	return nil
}

func find(groups []group, name string) *kong.Group {
	for i := range groups {
		if groups[i].has(name) {
			return &kong.Group{Key: groups[i].title, Title: groups[i].title}
		}
	}
	return nil
}
