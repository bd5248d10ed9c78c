package policy

import (
	"math"
	"slices"
)

// KVAwareOptions configure the policy kv-aware.
type KVAwareOptions struct {
	// Beta weighs the load term against the prefix. Default 1; negative means 0.
	Beta float64
	// MatchRate is the least part of the prompt that the best rank has to have, exceeded, for
	// matches to count at all. Default 0.1; negative means 0.
	MatchRate float64
	// Multiplier is how many times the fair share of requests a rank may get. Default 2.
	Multiplier float64
	// Warmup sends the first requests without a pin to ranks that have had none, in order of the ranks.
	Warmup bool
	// GPUOnly counts the prefix in the GPU alone, not what disk and object store add to it.
	GPUOnly bool
	// AsPublished answers as TensorRT-LLM's router does where that is worse: a request whose strict
	// pin is full is placed elsewhere, and one that finds every rank at its fair share is left for
	// the next batch. Default false: the one is refused, the other goes wherever there is room.
	AsPublished bool
}

// EnsureDefaults fills in what is not set.
func (o *KVAwareOptions) EnsureDefaults() {
	o.Beta = orDefault(o.Beta, 1)
	o.MatchRate = orDefault(o.MatchRate, 0.1)
	if !(o.Multiplier > 0) || math.IsInf(o.Multiplier, 1) {
		o.Multiplier = 2
	}
}

// orDefault returns v, 0 for a negative one, and d for zero and what is not a number.
func orDefault(v, d float64) float64 {
	switch {
	case v < 0:
		return 0
	case v == 0 || math.IsNaN(v) || math.IsInf(v, 1):
		return d
	}
	return v
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
	opts     KVAwareOptions
	b        batch
	eligible []int32
	totals   []float64
	perm     []int32
	ties     mt19937

	pending []int32 // ranks that have had no request yet, by id
	known   bool    // pending is set
}

// NewKVAware returns the policy kv-aware.
func NewKVAware(o KVAwareOptions) *KVAware {
	o.EnsureDefaults()
	return &KVAware{opts: o, b: batch{uncachedLoad: true, gpuOnly: o.GPUOnly, asPublished: o.AsPublished}}
}

// Name returns "kv-aware".
func (*KVAware) Name() string { return "kv-aware" }

// Route places reqs.
func (p *KVAware) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	left := b.begin(s, reqs, out)
	p.startWarmup()
	if !left {
		return
	}
	p.totals = resize(p.totals, len(s.Ranks))
	p.perm = resize(p.perm, len(s.Ranks))
	b.strictFirst()
	b.keep(func(q int32) bool { return !p.direct(q) })
	limit := b.fairCap(p.opts.Multiplier, len(b.order))
	slices.SortStableFunc(b.order, func(x, y int32) int { return compareHeads(&b.reqs[x], &b.reqs[y]) })
	for _, q := range b.order {
		p.scored(q, limit)
	}
}

// compareHeads orders by the first tokens, then the longer first.
func compareHeads(x, y *Request) int {
	if c := slices.Compare(x.Head, y.Head); c != 0 {
		return c
	}
	return y.Tokens - x.Tokens
}

// startWarmup notes at the first call which ranks there are.
func (p *KVAware) startWarmup() {
	if !p.opts.Warmup || p.known || len(p.b.s.Ranks) == 0 {
		return
	}
	p.known = true
	for i := range p.b.s.Ranks {
		p.pending = append(p.pending, p.b.s.Ranks[i].ID)
	}
	slices.Sort(p.pending)
}

// direct decides request q by its pin or for warming up. It reports whether request q is decided.
func (p *KVAware) direct(q int32) bool {
	b := &p.b
	i, decided := b.pin(q)
	why := ReasonPin
	if !decided && b.reqs[q].Pin == NoPin {
		i, why = p.cold(b.reqs[q].Tokens), ReasonWarmup
	}
	if i >= 0 {
		b.place(q, i, why, b.hit(q, i))
		if at, found := slices.BinarySearch(p.pending, b.s.Ranks[i].ID); found {
			p.pending = slices.Delete(p.pending, at, at+1)
		}
	}
	return decided || i >= 0
}

// cold returns the place of the lowest rank that has had no request, if it takes one of the given
// prompt, else -1. Ranks that are gone are passed over for good.
func (p *KVAware) cold(promptTokens int) int {
	for len(p.pending) > 0 {
		i := p.b.index(p.pending[0])
		if i >= 0 {
			if p.b.holds(i, promptTokens) {
				return i
			}
			return -1
		}
		p.pending = p.pending[1:]
	}
	return -1
}

// scored places request q by score.
func (p *KVAware) scored(q int32, limit int) {
	b := &p.b
	req := &b.reqs[q]
	sum, best := p.collect(q, limit)
	if len(p.eligible) == 0 && !p.opts.AsPublished {
		sum, best = p.collect(q, unlimited)
	}
	if len(p.eligible) == 0 {
		b.refuse(q, ReasonFairShare)
		return
	}
	t := float64(req.Tokens)
	gate := float64(best)/max(t, 1) > p.opts.MatchRate
	denominator := max(sum, t, math.SmallestNonzeroFloat64) // an empty prompt at no load has score 0
	for at, i := range p.eligible {
		m := 0.0
		if gate {
			m = float64(b.hit(q, int(i)))
		}
		// The conversion keeps the product from being fused with the sum: another processor must
		// not decide otherwise.
		p.totals[at] = (t - m) + float64(p.opts.Beta*float64((b.tokens[i]/denominator)*t))
	}
	i := p.pick(req.ID)
	if req.Explain {
		p.explain(q, gate)
	}
	b.place(q, i, ReasonScore, b.hit(q, i))
}

// collect sets the ranks that may be chosen for request q and returns the sum of their loads and the
// longest match.
func (p *KVAware) collect(q int32, limit int) (sum float64, best int32) {
	b := &p.b
	p.eligible = p.eligible[:0]
	for i := range b.s.Ranks {
		if b.active[i] < limit && b.holds(i, b.reqs[q].Tokens) {
			p.eligible = append(p.eligible, int32(i))
			sum += b.tokens[i]
			best = max(best, b.hit(q, i))
		}
	}
	return sum, best
}

// pick returns the eligible rank of the lowest total, then the lowest load, then the one that comes
// first in the permutation of the request's id.
func (p *KVAware) pick(id uint64) int {
	b := &p.b
	best, ties := 0, 1
	for at := 1; at < len(p.eligible); at++ {
		d := p.totals[at] - p.totals[best]
		if d == 0 {
			d = b.tokens[p.eligible[at]] - b.tokens[p.eligible[best]]
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
		if p.totals[at] == p.totals[best] && b.tokens[p.eligible[at]] == b.tokens[p.eligible[best]] {
			return int(p.eligible[at])
		}
	}
	return int(p.eligible[best])
}

// explain records the scores of request q.
func (p *KVAware) explain(q int32, gate bool) {
	b := &p.b
	at := 0
	for i := range b.s.Ranks {
		eligible := at < len(p.eligible) && p.eligible[at] == int32(i)
		total := 0.0
		if eligible {
			total = p.totals[at]
			at++
		}
		e := b.score(q, i, eligible, total)
		if gate {
			e.MatchTokens = b.hit(q, i)
		}
	}
}
