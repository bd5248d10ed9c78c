// Package help puts commands and flags into groups, so that --help can be read.
package help

import (
	"strings"

	"github.com/alecthomas/kong"
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
		{"Look and keep in order:", []string{"status", "top", "cache", "explain", "fsck", "gc", "version"}},
		{"Measure and size:", []string{"bench", "replay"}},
	}
}

// flags are the groups of flags, by command. Flags without a group come first.
func flags() map[string][]group {
	serve := []group{
		{"Who may connect:", []string{"socket*", "allow-*"}},
		{"Disk:", []string{"max-bytes", "min-free", "forget-lost-segments", "key-file", "tenants-file", "scrub-*", "writers", "read-in-flight-bytes"}},
		{"Host memory:", []string{"host-*", "load-staging-bytes", "save-staging-bytes", "event-bytes", "no-prefetch"}},
		{"Engines:", []string{"load-timeout", "min-offer-tokens", "prompts-only", "prefill-*", "stage-timeout", "cuda-library"}},
		{"Bucket:", []string{"object*"}},
		{"Routers:", []string{"router", "publish-*"}},
		{"HTTP, log and trace:", []string{"http*", "pprof", "log-*", "record-*", "otlp*", "trace*", "stop-timeout"}},
	}
	router := []group{
		{"Ranks:", []string{"rank", "health-*", "discovery*"}},
		{"Which rank:", []string{
			"policy", "placement", "beta", "match-rate", "decode-weight", "balance-weight", "overlap-loads", "assume-kv-reuse", "predict-ttl",
			"approximate-ttl", "request-ttl", "index-bytes", "max-prompt-tokens",
		}},
		{"Requests:", []string{"max-body-bytes", "tokenize-timeout", "max-tries", "first-byte-timeout", "stream-timeout", "drain-*"}},
		{"HTTP, keys and log:", []string{"http*", "token", "engine-key", "node-token", "log-*", "pprof"}},
	}
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
