package replay

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
)

// Report is the result of `kvconnd replay`.
type Report struct {
	Trace Summary `json:"trace"`
	// Setup is what was simulated, with 0 for what there was none of.
	Setup Options `json:"setup"`
	// InfiniteBlockHits and InfiniteTokenHits are the hit rates of a disk that never evicts.
	InfiniteBlockHits float64 `json:"infinite_block_hit_rate"`
	InfiniteTokenHits float64 `json:"infinite_token_hit_rate"`
	// Curve is the capacity curve of one disk for all ranks, or of an object tier, requests taken one
	// after the other; see [Capacity].
	Curve []CapacityPoint `json:"capacity_curve"`
	// Sizes are the sizes of disk that have given parts of the hits of an infinite one.
	Sizes []SizeFor `json:"sizes"`
	// Policies are the results by policy, in the sequence in which they were named.
	Policies []*Result `json:"policies"`

	capacity *Capacity
}

// SizeFor is the least size of disk with a part of the token hits of an infinite one.
type SizeFor struct {
	Part       float64 `json:"part"`
	DiskBlocks int     `json:"disk_blocks"`
	DiskBytes  float64 `json:"disk_bytes"`
}

// Run simulates a trace with each of the named policies and measures its capacity curve. progress may
// be nil; it is called now and then with the number of requests that have arrived, over all policies, and how
// many there are. Errors are those of [NewPolicy] and [Simulate].
func Run(ctx context.Context, t *Trace, o Options, policies []string, progress func(done, total int)) (*Report, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.FullBlocksOnly {
		t = t.keepFullBlocks()
	}
	setup := o.effective()
	r := &Report{Trace: t.Summary(), Setup: setup}
	all := NewCapacity(t, 1, nil)
	r.capacity = all
	r.InfiniteBlockHits, r.InfiniteTokenHits = all.At(t.DistinctBlocks)
	bytesPerBlock := float64(t.BlockTokens) * o.BytesPerToken
	r.Curve = all.Points(bytesPerBlock, setup.DiskBlocks)
	for _, part := range [...]float64{0.5, 0.75, 0.9, 0.95, 0.99, 1} {
		n := all.BlocksFor(part)
		r.Sizes = append(r.Sizes, SizeFor{Part: part, DiskBlocks: n, DiskBytes: float64(n) * bytesPerBlock})
	}
	total := len(policies) * len(t.Requests)
	for i, name := range policies {
		if slices.Contains(policies[:i], name) {
			return nil, fmt.Errorf("replay: policy %q is named twice", name)
		}
		p, err := NewPolicy(name, &o)
		if err != nil {
			return nil, err
		}
		result, err := Simulate(ctx, t, o, p, func(arrived int) {
			if progress != nil {
				progress(i*len(t.Requests)+arrived, total)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("replay with policy %s: %w", name, err)
		}
		result.Policy = name
		if o.Nodes > 1 {
			result.capacity = NewCapacity(t, o.Nodes, result.nodes)
			result.Curve = result.capacity.Points(bytesPerBlock, setup.DiskBlocks)
		}
		r.Policies = append(r.Policies, result)
	}
	return r, nil
}

// NewPolicy returns a fresh policy by its name, any that the router knows: see [byname.New]. The policy cost
// is told whether loads overlap with computing.
func NewPolicy(name string, o *Options) (policy.Policy, error) {
	return byname.New(byname.Options{Name: name, Cost: policy.CostOptions{OverlapLoads: o.OverlapLoads, AlwaysLoad: o.AlwaysLoad}})
}
