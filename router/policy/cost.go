package policy

import (
	"math"

	"github.com/kvconn/kvconn/router/load"
)

// Cost places a request where its first token is expected soonest:
//
//	queue + load + prefill + decode + balance   (seconds, lowest wins)
//
// queue is the uncached prompt tokens in front over the rank's prefill speed and what they load, less
// what is done of it; load the bytes of the prefix that come from disk and object store over their measured
// bandwidth; prefill the rest of the prompt over the prefill speed. Of the prefix as much is loaded as
// makes load + prefill shortest, so that a hit which is slower than computing is worth nothing. decode
// and balance are charges for the rank's share of decode blocks and of recent work; see [CostOptions].
// Ties go to the rank with the least recent work, then the fewest requests, then the lowest place.
type Cost struct {
	opts   CostOptions
	b      batch
	work   []costRank
	speed  float64 // prefill tokens a second where none is measured
	recent float64 // of all ready ranks
	decode float64 // most decode blocks of a ready rank
}

// costRank is what cost keeps of a rank during a batch.
type costRank struct {
	prefill float64 // seconds a token
	queue   float64 // seconds
	disk    float64 // seconds a token; infinite if nothing is loaded from there
	object  float64
	decode  float64 // blocks
	recent  float64 // tokens
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
	return &Cost{opts: o, b: batch{uncachedLoad: true}}
}

// Name returns "cost".
func (*Cost) Name() string { return "cost" }

// Route places reqs.
func (p *Cost) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	p.measure()
	b.strictFirst()
	b.keep(func(q int32) bool {
		i, decided := b.pin(q)
		if i >= 0 {
			p.explain(q)
			parts := p.parts(q, i)
			p.book(q, i, ReasonPin, &parts)
		}
		return !decided
	})
	for _, q := range b.order {
		p.decide(q)
	}
}

// measure takes speeds, queues and loads from the state.
func (p *Cost) measure() {
	s := p.b.s
	p.work = resize(p.work, len(s.Ranks))
	p.recent, p.decode, p.speed = 0, 0, 0
	n := 0
	for i := range s.Ranks {
		if v := s.Ranks[i].Speeds.PrefillTokens; positive(v) {
			p.speed += v
			n++
		}
	}
	if n == 0 {
		p.speed = DefaultPrefillTokens
	} else {
		p.speed /= float64(n)
	}
	for i := range s.Ranks {
		r, w := &s.Ranks[i], &p.work[i]
		w.prefill = 1 / p.speed
		if positive(r.Speeds.PrefillTokens) {
			w.prefill = 1 / r.Speeds.PrefillTokens
		}
		w.disk = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.DiskBytes)
		w.object = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.ObjectBytes)
		w.queue = delay(r.Speeds.QueueDelay) + p.queue(&r.Load, w)
		w.decode, w.recent = float64(r.Load.DecodeBlocks), r.Load.RecentTokens
		if r.Ready {
			p.recent += w.recent
			p.decode = max(p.decode, w.decode)
		}
	}
}

// queue returns the seconds until a rank has served what is in front of a new request.
func (p *Cost) queue(l *load.Rank, w *costRank) float64 {
	front := p.service(l.FrontTokens, l.FrontDiskTokens, l.FrontObjectTokens, w)
	behind := p.service(l.QueuedTokens-l.FrontTokens, l.QueuedDiskTokens-l.FrontDiskTokens, l.QueuedObjectTokens-l.FrontObjectTokens, w)
	return max(front-times(float64(l.FrontAge), 1e-9), 0) + behind
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

// maxDelay bounds a delay, in seconds.
const maxDelay = 1e9

// delay returns v, at most [maxDelay], and 0 for what is no delay.
func delay(v float64) float64 {
	if v > 0 {
		return min(v, maxDelay)
	}
	return 0
}

// times returns x * y rounded by itself: fused with a sum, as some processors do, it would make routers on
// different machines decide differently.
func times(x, y float64) float64 { return float64(x * y) }

// positive reports whether v can be a speed or a size. What is beyond these bounds is no measurement, and
// would make times infinite that are then compared.
func positive(v float64) bool { return v >= 1e-9 && v <= 1e18 }

// secondsPerToken returns the time to load a token's KV, or infinity if that was not measured.
func secondsPerToken(bytesPerToken, bytesPerSecond float64) float64 {
	if !positive(bytesPerToken) || !positive(bytesPerSecond) {
		return math.Inf(1)
	}
	return bytesPerToken / bytesPerSecond
}

// decide places request q on the eligible rank of the lowest cost.
func (p *Cost) decide(q int32) {
	b := &p.b
	best, bestTotal := -1, 0.0
	var bestParts costParts
	for i := range b.s.Ranks {
		if best >= 0 && p.work[i].queue > bestTotal || !b.holds(i, b.reqs[q].Tokens) {
			continue // the queue alone costs more, or it is full
		}
		parts := p.parts(q, i)
		total := parts.total()
		if best < 0 || total < bestTotal || total == bestTotal && p.lighter(i, best) {
			best, bestTotal, bestParts = i, total, parts
		}
	}
	p.explain(q)
	if best < 0 {
		b.refuse(q, ReasonAllFull)
		return
	}
	p.book(q, best, ReasonScore, &bestParts)
}

// explain records the cost of every rank for request q if that was asked for.
func (p *Cost) explain(q int32) {
	b := &p.b
	if !b.reqs[q].Explain {
		return
	}
	for i := range b.s.Ranks {
		e := b.score(q, i, b.holds(i, b.reqs[q].Tokens), 0)
		if !e.Eligible {
			continue
		}
		parts := p.parts(q, i)
		e.Total, e.MatchTokens = parts.total(), parts.use
		e.QueueSeconds, e.LoadSeconds, e.PrefillSeconds = parts.queue, parts.load, parts.prefill
		e.DecodeSeconds, e.BalanceSeconds = parts.decode, parts.balance
	}
}

// lighter breaks a tie.
func (p *Cost) lighter(i, j int) bool {
	if p.work[i].recent != p.work[j].recent {
		return p.work[i].recent < p.work[j].recent
	}
	return p.b.active[i] < p.b.active[j]
}

// parts returns the cost of request q on the i-th rank.
func (p *Cost) parts(q int32, i int) costParts {
	req, w := &p.b.reqs[q], &p.work[i]
	c := costParts{queue: w.queue}
	c.use, c.load, c.prefill = p.cut(req, i)
	whole := times(float64(req.Tokens), w.prefill)
	if p.opts.OverlapLoads {
		c.load = max(c.load-c.queue, 0)
	}
	if p.decode > 0 {
		c.decode = times(times(p.opts.DecodeWeight, whole), w.decode/p.decode)
	}
	if mean := p.recent / float64(p.b.ready); w.recent > mean {
		c.balance = times(times(p.opts.BalanceWeight, whole), max(w.recent/mean-1, 0))
	}
	return c
}

// cut returns how much of the prefix request q is best served with on the i-th rank, and the seconds to
// load it and to compute the rest. What is in the GPU is used in any case. Between the cuts tried both
// times are linear, so no other is better.
func (p *Cost) cut(req *Request, i int) (use int32, load, prefill float64) {
	if len(req.Match) == 0 {
		return 0, 0, times(float64(req.Tokens), p.work[i].prefill)
	}
	m, w, tokens := &req.Match[i], &p.work[i], int32(req.Tokens)
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
		l := p.loadSeconds(i, cuts[at][1], cuts[at][2])
		if c := times(float64(tokens-to), w.prefill); l+c < load+prefill {
			use, load, prefill = to, l, c
		}
	}
	return use, load, prefill
}

// loadSeconds returns the time to load so many tokens from each tier to the i-th rank.
func (p *Cost) loadSeconds(i int, disk, object int32) float64 {
	w, s := &p.work[i], &p.b.s.Ranks[i].Speeds
	t := 0.0
	if disk > 0 {
		t += times(float64(disk), w.disk) + delay(s.DiskDelay)
	}
	if object > 0 {
		t += times(float64(object), w.object) + delay(s.ObjectDelay)
	}
	return t
}

// book places request q and counts it for the rest of the batch.
func (p *Cost) book(q int32, i int, why Reason, c *costParts) {
	b, w := &p.b, &p.work[i]
	req := &b.reqs[q]
	b.place(q, i, why, c.use)
	uncached := float64(max(req.Tokens-int(c.use), 0))
	d := &b.out[q]
	w.queue += p.service(int64(uncached), int64(d.LoadDisk), int64(d.LoadObject), w)
	w.recent += uncached
	p.recent += uncached
	w.decode += float64((req.Tokens + b.s.blockSize() - 1) / b.s.blockSize())
	p.decode = max(p.decode, w.decode)
}
