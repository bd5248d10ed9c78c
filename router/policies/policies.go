// Package policies makes routing policies by the names that settings and commands have for them.
package policies

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/published"
)

// ErrUnknown means that there is no policy of that name.
var ErrUnknown = errors.New("there is no such policy")

// Options say which policy decides, and its parameters; zero values are the policies' defaults.
type Options struct {
	// Name is one of [Names], or such a name after first-turn/ or conversation/.
	Name         string
	Cost         policy.CostOptions
	KVAware      published.KVAwareOptions
	Conversation published.ConversationOptions
}

// entry is a policy by its name.
type entry struct {
	name string
	make func(o Options) policy.Policy
}

// table lists the policies.
func table() []entry {
	return []entry{
		{"cost", func(o Options) policy.Policy { return policy.NewCost(o.Cost) }},
		{"kv-aware", kvAware},
		{"kv-aware-gpu", func(o Options) policy.Policy { o.KVAware.GPUOnly = true; return kvAware(o) }},
		{"load", func(Options) policy.Policy { return published.NewLoad() }},
		{"round-robin", func(Options) policy.Policy { return policy.NewRoundRobin() }},
		{"conversation", conversation},
		{"serve-kv-aware", func(Options) policy.Policy { return published.NewServeKVAware(published.ServeKVAwareOptions{}) }},
		{"first-turn", func(o Options) policy.Policy { return policy.NewFirstTurn(kvAware(o)) }},
		{"published/load", func(Options) policy.Policy { return published.Exactly(published.NewLoad()) }},
		{"published/kv-aware", func(o Options) policy.Policy { return published.Exactly(published.NewKVAware(o.KVAware)) }},
		{"published/kv-aware-warmup", func(o Options) policy.Policy {
			o.KVAware.Warmup = true
			return published.Exactly(published.NewKVAware(o.KVAware))
		}},
		{"published/conversation", func(o Options) policy.Policy { return published.Exactly(published.NewConversation(o.Conversation)) }},
	}
}

func kvAware(o Options) policy.Policy { return published.NewKVAware(o.KVAware) }

func conversation(o Options) policy.Policy { return published.NewConversation(o.Conversation) }

// The prefixes of names for a policy that decides before another.
const (
	firstTurnOf    = "first-turn/"
	conversationOf = "conversation/"
)

// Names returns the names of the policies that stand by themselves.
func Names() []string {
	var names []string
	for _, e := range table() {
		names = append(names, e.name)
	}
	return names
}

// New makes the policy of the options. The error wraps [ErrUnknown].
func New(o Options) (policy.Policy, error) {
	p, ok := named(o, o.Name)
	if !ok {
		return nil, fmt.Errorf("policy %q: %w: want one of %s, or %sNAME or %sNAME", o.Name, ErrUnknown, strings.Join(Names(), ", "), firstTurnOf, conversationOf)
	}
	return p, nil
}

func named(o Options, name string) (policy.Policy, bool) {
	for _, e := range table() {
		if e.name == name {
			return e.make(o), true
		}
	}
	if next, ok := inner(o, name, firstTurnOf); ok {
		return policy.NewFirstTurn(next), true
	}
	if next, ok := inner(o, name, conversationOf); ok {
		o.Conversation.Fallback = next
		return conversation(o), true
	}
	return nil, false
}

// inner makes the policy that follows a prefix in a name. It must not begin with the same prefix, nor be one that
// answers exactly as published: that one has to see whole batches.
func inner(o Options, name, prefix string) (policy.Policy, bool) {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || strings.HasPrefix(rest+"/", prefix) || strings.HasPrefix(rest, "published/") {
		return nil, false
	}
	return named(o, rest)
}
