package policy

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/inflight"
)

// CostOptions configure the policy cost.
type CostOptions struct {
	// DecodeWeight is the charge for the rank that holds the most decode blocks, as a part of the time
	// that computing the whole prompt takes; others pay in proportion. Default 0.1; negative means 0.
	DecodeWeight float64
	// BalanceWeight is the charge, in the same unit, for each time that a rank's recent work exceeds the
	// mean by as much as the mean. It keeps ranks even where queues are too short to tell. Default 4;
	// negative means 0.
	BalanceWeight float64
	// OverlapLoads says that a rank loads a prefix while it computes the prompts before it, so that the
	// longer of the two counts rather than the sum.
	OverlapLoads bool
}

// EnsureDefaults fills in what is not set.
func (o *CostOptions) EnsureDefaults() {
	o.DecodeWeight = OrDefault(o.DecodeWeight, 0.1)
	o.BalanceWeight = OrDefault(o.BalanceWeight, 4)
}

// maxWeight bounds weights: totals remain finite, and can be compared.
const maxWeight = 1e9

// OrDefault returns the weight v, at most 1e9, 0 for a negative v, and d if v is zero or not a finite number.
func OrDefault(v, d float64) float64 {
	switch {
	case v < 0:
		return 0
	case v == 0 || math.IsNaN(v) || math.IsInf(v, 1):
		return d
	}
	return min(v, maxWeight)
}

// Cost places a request where its first token is expected soonest:
//
//	queue + load + prefill + decode + balance   (seconds, lowest wins)
//
// queue is the time to load and compute the prompts before it, less the part that is done; load
// is the bytes of the prefix that come from disk and object store over their measured bandwidth; prefill is
// the rest of the prompt over the prefill speed. The part of the prefix is loaded that makes load + prefill
// shortest, so that a hit which is slower than computing is worth nothing. decode and balance are charges
// for the rank's share of decode blocks and of recent work; see [CostOptions]. Ties go to the rank with the
// least recent work, then the fewest requests, then the lowest place.
type Cost struct {
	opts   CostOptions
	rules  Rules
	work   []costRank
	mean   float64 // recent work of a ready rank
	decode float64 // most decode blocks of a ready rank
}

// costRank is what cost makes of a rank.
type costRank struct {
	prefill float64 // seconds a token
	queue   float64 // seconds
	disk    float64 // seconds a token; infinite if nothing is loaded from there
	object  float64
}

// costParts are the seconds that make up the cost of one rank.
type costParts struct {
	queue, load, prefill, decode, balance float64
	use                                   int32
}

func (p *costParts) total() float64 { return p.queue + p.load + p.prefill + p.decode + p.balance }

// NewCost returns the policy cost.
func NewCost(o CostOptions) *Cost {
	o.EnsureDefaults()
	return &Cost{opts: o, rules: Rules{UncachedLoad: true}}
}

// Name returns "cost".
func (*Cost) Name() string { return "cost" }

// Place decides one request.
func (p *Cost) Place(s *State, r *Request, d *Decision) {
	if !p.rules.Begin(s, r, d) {
		return
	}
	p.measure(s)
	i, decided := p.rules.Pin(s, r, d)
	switch {
	case i >= 0:
		p.explain(s, r, d)
		parts := p.parts(s, r, i)
		p.rules.Place(s, r, d, i, ReasonPin, parts.use)
	case !decided:
		p.choose(s, r, d)
	}
}

// measure takes speeds, queues and loads from the state.
func (p *Cost) measure(s *State) {
	p.work = slices.Grow(p.work[:0], len(s.Ranks))[:len(s.Ranks)]
	p.mean, p.decode = 0, 0
	speed, ready := s.PrefillSpeed(), 0
	for i := range s.Ranks {
		r, w := &s.Ranks[i], &p.work[i]
		w.prefill = 1 / speed
		if positive(r.Speeds.PrefillTokens) {
			w.prefill = 1 / r.Speeds.PrefillTokens
		}
		w.disk = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.DiskBytes)
		w.object = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.ObjectBytes)
		w.queue = p.queue(&r.Load, w)
		if r.Ready {
			ready++
			p.mean += r.Load.RecentTokens
			p.decode = max(p.decode, float64(r.Load.DecodeBlocks))
		}
	}
	p.mean /= float64(ready)
}

// queue returns the seconds until a rank has served the requests that are there before a new one.
func (p *Cost) queue(l *inflight.Rank, w *costRank) float64 {
	front := p.service(l.FrontTokens, l.FrontDiskTokens, l.FrontObjectTokens, w)
	rest := p.service(l.QueuedTokens-l.FrontTokens, l.QueuedDiskTokens-l.FrontDiskTokens, l.QueuedObjectTokens-l.FrontObjectTokens, w)
	return max(front-times(float64(l.FrontAge), 1e-9), 0) + rest
}

// service returns the seconds to load and compute tokens one after the other, or to compute them if
// loads are no burden on others.
func (p *Cost) service(compute, disk, object int64, w *costRank) float64 {
	t := times(float64(compute), w.prefill)
	if p.opts.OverlapLoads {
		return t
	}
	if disk > 0 && !math.IsInf(w.disk, 1) {
		t += times(float64(disk), w.disk)
	}
	if object > 0 && !math.IsInf(w.object, 1) {
		t += times(float64(object), w.object)
	}
	return t
}

// times returns x * y rounded by itself. Some processors would fuse the product with a sum, and routers on
// different machines would decide differently.
func times(x, y float64) float64 { return float64(x * y) }

// positive reports whether v can be a speed or a size. A number beyond these bounds is no measurement, and
// would make times infinite, which cannot be compared.
func positive(v float64) bool { return v >= 1e-9 && v <= 1e18 }

// secondsPerToken returns the time to load a token's KV, or infinity if that was not measured.
func secondsPerToken(bytesPerToken, bytesPerSecond float64) float64 {
	if !positive(bytesPerToken) || !positive(bytesPerSecond) {
		return math.Inf(1)
	}
	return bytesPerToken / bytesPerSecond
}

// choose places a request on the eligible rank of the lowest cost.
func (p *Cost) choose(s *State, r *Request, d *Decision) {
	best, bestTotal := -1, 0.0
	var bestParts costParts
	for i := range s.Ranks {
		if best >= 0 && p.work[i].queue > bestTotal || !s.Holds(i, r.Tokens) {
			continue // the queue alone costs more, or it is full
		}
		parts := p.parts(s, r, i)
		total := parts.total()
		if best < 0 || total < bestTotal || total == bestTotal && lighter(&s.Ranks[i].Load, &s.Ranks[best].Load) {
			best, bestTotal, bestParts = i, total, parts
		}
	}
	p.explain(s, r, d)
	if best < 0 {
		p.rules.Refuse(s, r, d, ReasonAllFull)
		return
	}
	p.rules.Place(s, r, d, best, ReasonScore, bestParts.use)
}

// explain records the cost of every rank if that was asked for.
func (p *Cost) explain(s *State, r *Request, d *Decision) {
	if !r.Explain {
		return
	}
	for i := range s.Ranks {
		e := p.rules.Score(s, r, d, i, s.Holds(i, r.Tokens), 0)
		if !e.Eligible {
			continue
		}
		parts := p.parts(s, r, i)
		e.Total, e.MatchTokens = parts.total(), parts.use
		e.QueueSeconds, e.LoadSeconds, e.PrefillSeconds = parts.queue, parts.load, parts.prefill
		e.DecodeSeconds, e.BalanceSeconds = parts.decode, parts.balance
	}
}

// lighter breaks a tie.
func lighter(a, b *inflight.Rank) bool {
	return cmp.Or(cmp.Compare(a.RecentTokens, b.RecentTokens), a.ActiveRequests-b.ActiveRequests) < 0
}

// parts returns the cost of a request on the i-th rank.
func (p *Cost) parts(s *State, r *Request, i int) costParts {
	w, l := &p.work[i], &s.Ranks[i].Load
	c := costParts{queue: w.queue}
	c.use, c.load, c.prefill = p.cut(s, r, i)
	whole := times(float64(r.Tokens), w.prefill)
	if p.opts.OverlapLoads {
		c.load = max(c.load-c.queue, 0)
	}
	if p.decode > 0 {
		c.decode = times(times(p.opts.DecodeWeight, whole), float64(l.DecodeBlocks)/p.decode)
	}
	if l.RecentTokens > p.mean {
		c.balance = times(times(p.opts.BalanceWeight, whole), max(l.RecentTokens/p.mean-1, 0))
	}
	return c
}

// cut returns how much of the prefix the i-th rank best serves a request with, and the seconds to load it
// and to compute the rest. What is in the GPU is used in any case. Between the cuts tried both times are
// linear, so no other is better.
func (p *Cost) cut(s *State, r *Request, i int) (use int32, load, prefill float64) {
	if len(r.Match) == 0 {
		return 0, 0, times(float64(r.Tokens), p.work[i].prefill)
	}
	m, w, tokens := &r.Match[i], &p.work[i], int32(r.Tokens)
	use = min(m.GPU, tokens)
	prefill = times(float64(tokens-use), w.prefill)
	if m.Usable <= m.GPU && m.Disk|m.Object == 0 {
		return use, 0, prefill
	}
	cuts := [...][3]int32{{m.GPU + m.Disk, m.Disk, 0}, {m.GPU + m.Disk + m.Object, m.Disk, m.Object}, {m.Usable, m.LoadDisk, m.LoadObject}}
	for at := range cuts {
		to := min(cuts[at][0], tokens)
		if to <= use {
			continue
		}
		l := w.loadSeconds(&s.Ranks[i].Speeds, cuts[at][1], cuts[at][2])
		if c := times(float64(tokens-to), w.prefill); l+c < load+prefill {
			use, load, prefill = to, l, c
		}
	}
	return use, load, prefill
}

// loadSeconds returns the time to load n tokens from each tier to the rank.
func (w *costRank) loadSeconds(v *Speeds, disk, object int32) float64 {
	t := 0.0
	if disk > 0 {
		t += times(float64(disk), w.disk) + v.DiskDelay
	}
	if object > 0 {
		t += times(float64(object), w.object) + v.ObjectDelay
	}
	return t
}
