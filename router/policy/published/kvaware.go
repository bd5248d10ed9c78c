package published

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/policy"
)

// KVAwareOptions configure the policy kv-aware.
type KVAwareOptions struct {
	// Beta weighs the load term against the prefix. Default 1; negative means 0.
	Beta float64
	// MatchRate is the part of the prompt that the best rank must have more of for matches to count at
	// all. Default 0.1; negative means 0.
	MatchRate float64
	// Multiplier is how many times the fair share of requests a rank may get. Default 2.
	Multiplier float64
	// Warmup sends the first requests without a pin to ranks that have had none, in order of their ids.
	Warmup bool
	// GPUOnly counts the prefix in the GPU alone, not what disk and object store add to it.
	GPUOnly bool
}

// KVAware is TensorRT-LLM's attention-DP router for block reuse. Each request goes to the rank with the
// lowest
//
//	(T - m) + beta * (load / max(sum of eligible loads, T)) * T
//
// of T prompt tokens, m of them cached there; ties by load, then by a permutation seeded with the
// request's id. Ranks at their fair share are not eligible. The load is of uncached tokens. Requests
// with equal heads are placed after each other, the longer first.
type KVAware struct {
	batch
	opts     KVAwareOptions
	eligible []int32
	totals   []float64
	perm     []int32
	ties     mt19937

	pending []int32 // ranks that have had no request yet, by id
	known   bool    // pending is set
}

// NewKVAware returns the policy kv-aware.
func NewKVAware(o KVAwareOptions) *KVAware {
	o.Beta, o.MatchRate, o.Multiplier = policy.OrDefault(o.Beta, 1), policy.OrDefault(o.MatchRate, 0.1), orTwo(o.Multiplier)
	p := &KVAware{opts: o}
	p.rules, p.decide = policy.Rules{UncachedLoad: true, GPUOnly: o.GPUOnly}, p.placeBatch
	return p
}

// Name returns "kv-aware".
func (*KVAware) Name() string { return "kv-aware" }

func (p *KVAware) placeBatch() {
	p.startWarmup()
	p.totals = resize(p.totals, len(p.s.Ranks))
	p.perm = resize(p.perm, len(p.s.Ranks))
	p.strictFirst()
	p.each(p.direct)
	limit := p.fairShare(p.opts.Multiplier, len(p.order))
	slices.SortStableFunc(p.order, func(x, y int32) int { return compareHeads(p.reqs[x], p.reqs[y]) })
	p.each(func(r *policy.Request, d *policy.Decision) bool {
		p.scored(r, d, limit)
		return true
	})
}

// compareHeads orders by the first tokens, then the longer first.
func compareHeads(x, y *policy.Request) int {
	return cmp.Or(slices.Compare(x.Head, y.Head), y.Tokens-x.Tokens)
}

// startWarmup notes at the first call which ranks there are.
func (p *KVAware) startWarmup() {
	if !p.opts.Warmup || p.known || len(p.s.Ranks) == 0 {
		return
	}
	p.known = true
	for i := range p.s.Ranks {
		p.pending = append(p.pending, p.s.Ranks[i].ID)
	}
	slices.Sort(p.pending)
}

// direct decides a request by its pin or for warming up. It reports whether the request is decided.
func (p *KVAware) direct(r *policy.Request, d *policy.Decision) bool {
	i, decided := p.rules.Pin(p.s, r, d)
	why := policy.ReasonPin
	if r.Pin == policy.NoPin {
		i, why = p.cold(r.Tokens), policy.ReasonWarmup
	}
	if i >= 0 {
		p.place(r, d, i, why)
		if at, found := slices.BinarySearch(p.pending, p.s.Ranks[i].ID); found {
			p.pending = slices.Delete(p.pending, at, at+1)
		}
	}
	return decided || i >= 0
}

// cold returns the place of the lowest rank that has had no request, if it takes one of the given
// prompt, else -1. Ranks that are gone are passed over for good.
func (p *KVAware) cold(promptTokens int) int {
	for len(p.pending) > 0 {
		i := p.s.Index(p.pending[0])
		if i >= 0 {
			if p.s.Holds(i, promptTokens) {
				return i
			}
			return -1
		}
		p.pending = p.pending[1:]
	}
	return -1
}

// scored places a request by score.
func (p *KVAware) scored(r *policy.Request, d *policy.Decision, limit int) {
	sum, most := p.collect(r, limit)
	if len(p.eligible) == 0 && !p.exactly {
		sum, most = p.collect(r, math.MaxInt)
	}
	if len(p.eligible) == 0 {
		p.rules.Refuse(p.s, r, d, policy.ReasonFairShare)
		return
	}
	t := float64(r.Tokens)
	counts := float64(most)/max(t, 1) > p.opts.MatchRate
	denominator := max(sum, t, math.SmallestNonzeroFloat64) // an empty prompt at no load has score 0
	for at, i := range p.eligible {
		m := 0.0
		if counts {
			m = float64(p.rules.Hit(r, int(i)))
		}
		// The conversion keeps the product from being fused with the sum: another processor must
		// not decide otherwise.
		p.totals[at] = (t - m) + float64(p.opts.Beta*float64((p.rules.Load(p.s, int(i))/denominator)*t))
	}
	i := p.pick(r.ID)
	if r.Explain {
		p.explain(r, d, counts)
	}
	p.place(r, d, i, policy.ReasonScore)
}

// collect sets the ranks that may be chosen for a request and returns the sum of their loads and the longest
// match.
func (p *KVAware) collect(r *policy.Request, limit int) (sum float64, most int32) {
	p.eligible = p.eligible[:0]
	for i := range p.s.Ranks {
		if p.below(i, limit, r) {
			p.eligible = append(p.eligible, int32(i))
			sum += p.rules.Load(p.s, i)
			most = max(most, p.rules.Hit(r, i))
		}
	}
	return sum, most
}

// pick returns the eligible rank of the lowest total, then the lowest load, then the one that comes
// first in the permutation of the request's id.
func (p *KVAware) pick(id uint64) int {
	load := func(at int) float64 { return p.rules.Load(p.s, int(p.eligible[at])) }
	best, ties := 0, 1
	for at := 1; at < len(p.eligible); at++ {
		d := p.totals[at] - p.totals[best]
		if d == 0 {
			d = load(at) - load(best)
		}
		if d < 0 {
			best, ties = at, 1
		} else if d == 0 {
			ties++
		}
	}
	if ties == 1 {
		return int(p.eligible[best])
	}
	p.ties.seed(id)
	perm := p.perm[:len(p.eligible)]
	p.ties.permute(perm)
	for _, at := range perm {
		if p.totals[at] == p.totals[best] && load(int(at)) == load(best) {
			return int(p.eligible[at])
		}
	}
	return int(p.eligible[best])
}

// explain records the scores.
func (p *KVAware) explain(r *policy.Request, d *policy.Decision, counts bool) {
	at := 0
	for i := range p.s.Ranks {
		eligible := at < len(p.eligible) && p.eligible[at] == int32(i)
		total := 0.0
		if eligible {
			total = p.totals[at]
			at++
		}
		e := p.rules.Score(p.s, r, d, i, eligible, total)
		if counts {
			e.MatchTokens = p.rules.Hit(r, i)
		}
	}
}
