package published

import (
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/policy"
)

// Load gives each request, the longest first, to the rank with the fewest tokens, then the fewest
// requests, then the lowest place: TensorRT-LLM's default attention-DP router. The token load is of whole
// prompts.
type Load struct{ batch }

// NewLoad returns the policy load.
func NewLoad() *Load {
	p := &Load{}
	p.decide = p.placeBatch
	return p
}

// Name returns "load".
func (*Load) Name() string { return "load" }

func (p *Load) placeBatch() {
	p.strictFirst()
	p.each(func(r *policy.Request, d *policy.Decision) bool { return p.rules.PlacePinned(p.s, r, d) })
	if p.exactly && p.s == &p.own {
		for i := range p.own.Ranks { // the tokens of pinned requests count for the capacity alone
			l := &p.own.Ranks[i].Load
			before := p.given.Ranks[i].Load.PromptTokens
			l.PromptTokens, l.OutputTokens = before, l.OutputTokens+l.PromptTokens-before
		}
	}
	p.balance(p.fairShare(1, len(p.order)))
}

// balance places the requests of order on ranks with fewer requests than limit.
func (p *Load) balance(limit int) {
	slices.SortStableFunc(p.order, func(x, y int32) int { return p.reqs[y].Tokens - p.reqs[x].Tokens })
	p.each(func(r *policy.Request, d *policy.Decision) bool {
		best := p.least(0, limit, r, true)
		if best < 0 && !p.exactly {
			limit = math.MaxInt
			best = p.least(0, limit, r, true)
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
