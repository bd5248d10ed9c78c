// Package byname makes routing policies by the names that settings and commands have for them.
package byname

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
	// Name is a name that [New] lists in its error, or such a name after first-turn/ or conversation/.
	Name         string
	Cost         policy.CostOptions
	KVAware      published.KVAwareOptions
	Conversation published.ConversationOptions
}

// names are the policies that stand by themselves.
const names = "cost, kv-aware, kv-aware-gpu, load, round-robin, conversation, serve-kv-aware, first-turn, " +
	"published/load, published/kv-aware, published/kv-aware-warmup, published/conversation"

// The prefixes of names for a policy that decides before another.
const (
	firstTurnOf    = "first-turn/"
	conversationOf = "conversation/"
)

// New makes the policy of the options. The error wraps [ErrUnknown].
func New(o Options) (policy.Policy, error) {
	p := named(o, o.Name)
	if p == nil {
		return nil, fmt.Errorf("policy %q: %w: want one of %s, or %sNAME or %sNAME", o.Name, ErrUnknown, names, firstTurnOf, conversationOf)
	}
	return p, nil
}

// named returns nil if there is no policy of that name.
func named(o Options, name string) policy.Policy {
	switch name {
	case "cost":
		return policy.NewCost(o.Cost)
	case "kv-aware":
		return published.NewKVAware(o.KVAware)
	case "kv-aware-gpu":
		o.KVAware.GPUOnly = true
		return published.NewKVAware(o.KVAware)
	case "load":
		return published.NewLoad()
	case "round-robin":
		return policy.NewRoundRobin()
	case "conversation":
		return published.NewConversation(o.Conversation)
	case "serve-kv-aware":
		return published.NewServeKVAware(published.ServeKVAwareOptions{})
	case "first-turn":
		return policy.NewFirstTurn(published.NewKVAware(o.KVAware))
	case "published/load":
		return published.Exactly(published.NewLoad())
	case "published/kv-aware-warmup":
		o.KVAware.Warmup = true
		fallthrough
	case "published/kv-aware":
		return published.Exactly(published.NewKVAware(o.KVAware))
	case "published/conversation":
		return published.Exactly(published.NewConversation(o.Conversation))
	}
	if next := inner(o, name, firstTurnOf); next != nil {
		return policy.NewFirstTurn(next)
	}
	if o.Conversation.Fallback = inner(o, name, conversationOf); o.Conversation.Fallback != nil {
		return published.NewConversation(o.Conversation)
	}
	return nil
}

// inner makes the policy that follows a prefix in a name, nil if there is none. It must not begin with the same prefix, nor be one that
// answers exactly as published: that one has to see whole batches.
func inner(o Options, name, prefix string) policy.Policy {
	rest, ok := strings.CutPrefix(name, prefix)
	if !ok || strings.HasPrefix(rest+"/", prefix) || strings.HasPrefix(rest, "published/") {
		return nil
	}
	return named(o, rest)
}
