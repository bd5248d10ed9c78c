package replay

import (
	"github.com/kvconn/kvconn/router/policies"
	"github.com/kvconn/kvconn/router/policy"
)

// PolicyNames returns the names of the policies that are worth comparing, the baseline first.
func PolicyNames() []string {
	return []string{"round-robin", "load", "kv-aware", "kv-aware-gpu", "conversation", "first-turn", "cost"}
}

// NewPolicy returns a fresh policy by its name, any that the router knows: see [policies.New]. The policy cost
// is told whether loads overlap with computing.
func NewPolicy(name string, o *Options) (policy.Policy, error) {
	return policies.New(policies.Options{Name: name, Cost: policy.CostOptions{OverlapLoads: o.OverlapLoads}})
}
