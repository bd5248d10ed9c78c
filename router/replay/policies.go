package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/router/policy"
)

// ErrUnknownPolicy means that there is no policy of that name.
var ErrUnknownPolicy = errors.New("unknown policy")

// How the names of policies in front of another begin.
const (
	firstTurnOf    = "first-turn/"
	conversationOf = "conversation/"
)

// PolicyNames returns the names of the policies that are worth comparing, the baseline first.
func PolicyNames() []string {
	return []string{"round-robin", "load", "kv-aware", "kv-aware-gpu", "conversation", "first-turn", "cost"}
}

// NewPolicy returns a fresh policy by its name, which is one of the router's or of [PolicyNames]:
// kv-aware-gpu is kv-aware that sees GPU hits only, first-turn stands in front of kv-aware, "first-turn/" or
// "conversation/" and a name in front of that one. The loads that overlap with computing are known to cost.
func NewPolicy(name string, o *Options) (policy.Policy, error) {
	if next, ok := strings.CutPrefix(name, firstTurnOf); ok && !strings.HasPrefix(next, "first-turn") {
		p, err := NewPolicy(next, o)
		if err != nil {
			return nil, err
		}
		return policy.NewFirstTurn(p), nil
	}
	if next, ok := strings.CutPrefix(name, conversationOf); ok && !strings.HasPrefix(next, "conversation") {
		p, err := NewPolicy(next, o)
		if err != nil {
			return nil, err
		}
		return policy.NewConversation(policy.ConversationOptions{Fallback: p}), nil
	}
	switch name {
	case "round-robin":
		return policy.NewRoundRobin(), nil
	case "load":
		return policy.NewLoad(policy.LoadOptions{}), nil
	case "kv-aware":
		return policy.NewKVAware(policy.KVAwareOptions{}), nil
	case "kv-aware-gpu":
		return policy.NewKVAware(policy.KVAwareOptions{GPUOnly: true}), nil
	case "serve-kv-aware":
		return policy.NewServeKVAware(policy.ServeKVAwareOptions{}), nil
	case "conversation":
		return policy.NewConversation(policy.ConversationOptions{}), nil
	case "first-turn":
		return policy.NewFirstTurn(policy.NewKVAware(policy.KVAwareOptions{})), nil
	case "cost":
		return policy.NewCost(policy.CostOptions{OverlapLoads: o.OverlapLoads}), nil
	}
	return nil, fmt.Errorf("%w %q: want one of %s, serve-kv-aware, or %sNAME or %sNAME",
		ErrUnknownPolicy, name, strings.Join(PolicyNames(), ", "), firstTurnOf, conversationOf)
}
