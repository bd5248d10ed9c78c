package replay

import (
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/router/policy"
)

// randomOptions returns machines that are small against randomPrompts, so that everything waits.
func randomOptions(random *rand.Rand) Options {
	o := Options{
		Nodes: 1 + random.IntN(3), GPUBlocks: 1 + random.IntN(60), DiskBlocks: random.IntN(120) - 1, ObjectBlocks: random.IntN(300),
		PrefillTokensPerS: 20 + 5000*random.Float64(), BytesPerToken: 1, DiskBytesPerS: 20 + 9000*random.Float64(),
		ObjectBytesPerS: 20 + 9000*random.Float64(), DiskDelay: float64(random.IntN(20)-1) / 1e3,
		ObjectDelay: float64(random.IntN(20)-1) / 1e3, DecodeTokenTime: float64(random.IntN(30)-1) / 1e3,
		MaxRunning: 1 + random.IntN(20), Speed: 0.1 + 4*random.Float64(), Seed: random.Uint32(),
		OverlapLoads: random.IntN(2) == 0, AlwaysLoad: random.IntN(4) == 0, Sequential: random.IntN(6) == 0,
	}
	o.Ranks = o.Nodes * (1 + random.IntN(3))
	if random.IntN(3) == 0 {
		o.SaveBytesPerS = 5000 * random.Float64()
	}
	if random.IntN(2) == 0 {
		o.Spread = 1
	}
	return o
}

// invariant watches a simulation from the policy's place.
type invariant struct {
	policy.Policy
	t *testing.T
}

func (p *invariant) Place(s *policy.State, r *policy.Request, d *policy.Decision) {
	for i, m := range r.Match {
		if m.GPU < 0 || m.Disk < 0 || m.Object < 0 || m.Usable != m.GPU+m.Disk+m.Object || int(m.Usable) > r.Tokens {
			p.t.Fatalf("match %+v of %d tokens on rank %d", m, r.Tokens, i)
		}
	}
	p.Policy.Place(s, r, d)
}

// Whatever the machines and the policy, every request ends, no earlier than it can be computed, and what
// was found and what was computed add up.
func TestEveryRequestEnds(t *testing.T) {
	random := seed.Random(t, 41)
	for run := range 150 {
		trace, o := randomPrompts(random, 120), randomOptions(random)
		p, err := NewPolicy(policyNames()[run%len(policyNames())], &o)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Simulate(t.Context(), trace, o, &invariant{Policy: p, t: t}, nil)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		refused, tokens := 0, 0
		for _, q := range trace.Requests {
			if len(q.Blocks) > o.GPUBlocks {
				refused++
				continue
			}
			tokens += q.InputTokens
		}
		if r.Refused != refused || r.Served != len(trace.Requests)-refused {
			t.Fatalf("%+v: %d served, %d refused, want %d", o, r.Served, r.Refused, refused)
		}
		if r.ComputedTokens > int64(tokens) || r.BlockHits.Total > 1 || r.UsedTokens > r.TokenHits.Total+1e-9 {
			t.Fatalf("%+v: %d of %d tokens computed, %v of them found, %v used", o, r.ComputedTokens, tokens, r.TokenHits.Total, r.UsedTokens)
		}
		if r.Served > 0 && (r.ttft[0] < 0 || r.TTFT.Max > r.EndSeconds || float64(r.ComputedTokens) > r.EndSeconds*o.PrefillTokensPerS*float64(o.Ranks)+1) {
			t.Fatalf("%+v: times to first token %+v, end after %v s, %d tokens computed", o, r.TTFT, r.EndSeconds, r.ComputedTokens)
		}
	}
}
