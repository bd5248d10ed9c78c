package published

import (
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/policy"
)

// LoadOptions configure the policy load.
type LoadOptions struct {
	// Multiplier is how many times the fair share of requests a rank may get. Default 1.
	Multiplier float64
}

// Load gives each request, the longest first, to the rank with the fewest tokens, then the fewest
// requests, then the lowest place: TensorRT-LLM's default attention-DP router. The token load is of whole
// prompts.
type Load struct {
	batch
	multiplier float64
}

// NewLoad returns the policy load.
func NewLoad(o LoadOptions) *Load {
	p := &Load{multiplier: o.Multiplier}
	if !(p.multiplier > 0) || math.IsInf(p.multiplier, 1) {
		p.multiplier = 1
	}
	p.decide = p.placeBatch
	return p
}

// Name returns "load".
func (*Load) Name() string { return "load" }

func (p *Load) placeBatch() {
	p.strictFirst()
	p.each(p.placePinned)
	if p.exactly && p.s == &p.own {
		for i := range p.own.Ranks { // the tokens of pinned requests count for the capacity alone
			l := &p.own.Ranks[i].Load
			before := p.given.Ranks[i].Load.PromptTokens
			l.PromptTokens, l.OutputTokens = before, l.OutputTokens+l.PromptTokens-before
		}
	}
	p.balance(p.fairShare(p.multiplier, len(p.order)))
}

// balance places the requests of order on ranks with fewer requests than limit.
func (p *Load) balance(limit int) {
	slices.SortStableFunc(p.order, func(x, y int32) int { return p.reqs[y].Tokens - p.reqs[x].Tokens })
	p.each(func(r *policy.Request, d *policy.Decision) bool {
		best := p.least(r, limit)
		if best < 0 && !p.exactly {
			limit = policy.Unlimited
			best = p.least(r, limit)
		}
		if r.Explain {
			for i := range p.s.Ranks {
				p.rules.Score(p.s, r, d, i, p.below(i, limit, r), p.rules.Load(p.s, i))
			}
		}
		if best < 0 {
			p.rules.Refuse(p.s, r, d, policy.ReasonFairShare)
		} else {
			p.place(r, d, best, policy.ReasonScore)
		}
		return true
	})
}

// least returns the place of the rank with the least load that has fewer requests than limit and takes r, or
// -1.
func (p *Load) least(r *policy.Request, limit int) int {
	best := -1
	for i := range p.s.Ranks {
		if p.below(i, limit, r) && (best < 0 || p.less(i, best)) {
			best = i
		}
	}
	return best
}

func (p *Load) less(i, j int) bool {
	a, b := &p.s.Ranks[i].Load, &p.s.Ranks[j].Load
	if a.PromptTokens != b.PromptTokens {
		return a.PromptTokens < b.PromptTokens
	}
	return a.ActiveRequests < b.ActiveRequests
}
