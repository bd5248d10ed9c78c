package route

import (
	"fmt"
	"strings"

	"github.com/kvconn/kvconn/router/policy"
)

// PolicyOptions say which policy decides, and its parameters; zero values are the policies' defaults.
type PolicyOptions struct {
	// Name is cost, kv-aware, load, round-robin, conversation or serve-kv-aware; first-turn/NAME and
	// conversation/NAME put first-turn or conversation in front of another. Default cost.
	Name         string
	Cost         policy.CostOptions
	KVAware      policy.KVAwareOptions
	Load         policy.LoadOptions
	Conversation policy.ConversationOptions
	ServeKVAware policy.ServeKVAwareOptions
}

// NewPolicy makes the policy of the options.
func NewPolicy(o PolicyOptions) (policy.Policy, error) {
	name, rest, nested := strings.Cut(o.Name, "/")
	if nested && (name == "first-turn" || name == "conversation") {
		o.Name = rest
		next, err := NewPolicy(o)
		if err != nil {
			return nil, err
		}
		if name == "first-turn" {
			return policy.NewFirstTurn(next), nil
		}
		o.Conversation.Fallback = next
		return policy.NewConversation(o.Conversation), nil
	}
	switch o.Name {
	case "", "cost":
		return policy.NewCost(o.Cost), nil
	case "kv-aware":
		return policy.NewKVAware(o.KVAware), nil
	case "load":
		return policy.NewLoad(o.Load), nil
	case "round-robin":
		return policy.NewRoundRobin(), nil
	case "conversation":
		return policy.NewConversation(o.Conversation), nil
	case "serve-kv-aware":
		return policy.NewServeKVAware(o.ServeKVAware), nil
	}
	return nil, fmt.Errorf("policy %q: cost, kv-aware, load, round-robin, conversation, serve-kv-aware, or first-turn/ or conversation/ in front of one", o.Name)
}
