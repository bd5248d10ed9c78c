package published

import (
	"cmp"
	"math"

	"github.com/kvconn/kvconn/router/policy"
)

// ServeKVAwareOptions configure the policy serve-kv-aware.
type ServeKVAwareOptions struct {
	// LoadWeight is how many blocks an active request takes off the score. Default 0.25; negative
	// means 0.
	LoadWeight float64
	// Cap is the number of requests with which a rank is chosen only if all others have as many. 0 means no cap.
	Cap float64
}

// ServeKVAware is the router before TensorRT-LLM's servers. It takes the rank of the highest
//
//	matched tokens / block size - load weight * active requests
//
// among the ranks below the load cap, or all if none is; ties in turn. A rank that was given requests
// of equal content before goes first while it is a candidate.
type ServeKVAware struct {
	rules    policy.Rules
	opts     ServeKVAwareOptions
	contents homes
	turn     int
	below    []bool
	totals   []float64
}

// NewServeKVAware returns the policy serve-kv-aware.
func NewServeKVAware(o ServeKVAwareOptions) *ServeKVAware {
	o.LoadWeight = policy.OrDefault(o.LoadWeight, 0.25)
	return &ServeKVAware{opts: o, contents: newHomes(maxHomes)}
}

// Name returns "serve-kv-aware".
func (*ServeKVAware) Name() string { return "serve-kv-aware" }

// Place decides one request.
func (p *ServeKVAware) Place(s *policy.State, r *policy.Request, d *policy.Decision) {
	if !p.rules.Begin(s, r, d) || p.rules.PlacePinned(s, r, d) {
		return
	}
	best, ties := p.compare(s, r, cmp.Or(p.opts.Cap, math.Inf(1)))
	if best < 0 {
		best, ties = p.compare(s, r, math.Inf(1))
	}
	if best < 0 {
		p.rules.Refuse(s, r, d, policy.ReasonAllFull)
		return
	}
	chosen, why := p.tied(best, ties), policy.ReasonScore
	if id, ok := p.contents.get(r.Content); ok && r.Content != "" {
		if i := s.Index(id); i >= 0 && p.below[i] {
			chosen, why = i, policy.ReasonContent
		}
	}
	p.turn++
	if r.Content != "" {
		p.contents.set(r.Content, s.Ranks[chosen].ID)
	}
	if r.Explain {
		for i := range s.Ranks {
			p.rules.Score(s, r, d, i, p.below[i], p.totals[i]).MatchTokens = p.rules.Hit(r, i)
		}
	}
	p.rules.Place(s, r, d, chosen, why, p.rules.Hit(r, chosen))
}

// compare sets the scores of all ranks and which of them may be chosen: those with fewer requests than limit
// that take r. It returns the first of the best of these, -1 if there is none, and how many are as good.
func (p *ServeKVAware) compare(s *policy.State, r *policy.Request, limit float64) (best, ties int) {
	p.below, p.totals = resize(p.below, len(s.Ranks)), resize(p.totals, len(s.Ranks))
	best = -1
	for i := range s.Ranks {
		active := float64(s.Ranks[i].Load.ActiveRequests)
		p.below[i] = active < limit && s.Holds(i, r.Tokens)
		p.totals[i] = float64(p.rules.Hit(r, i))/float64(s.BlockSize) - float64(p.opts.LoadWeight*active)
		switch {
		case !p.below[i]:
		case best < 0 || p.totals[i] > p.totals[best]:
			best, ties = i, 1
		case p.totals[i] == p.totals[best]:
			ties++
		}
	}
	return best, ties
}

// tied returns the one in turn of the candidates that are as good as best.
func (p *ServeKVAware) tied(best, ties int) int {
	k := p.turn % ties
	for i := best; ; i++ {
		if p.below[i] && p.totals[i] == p.totals[best] {
			if k == 0 {
				return i
			}
			k--
		}
	}
}
