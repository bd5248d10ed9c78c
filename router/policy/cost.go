package policy

import (
	"cmp"
	"math"

	"github.com/kvconn/kvconn/router/inflight"
)

// CostOptions configure the policy cost.
type CostOptions struct {
	// DecodeWeight is the charge for the rank that holds the most decode blocks, as a part of the time that loading and
	// computing the prompt takes there; others pay in proportion. Default 0.1; negative means 0.
	DecodeWeight float64
	// BalanceWeight is the charge for each time that what a rank's GPU took in of late exceeds the mean by as much as
	// the mean, as a part of the time that computing the tokens takes which no rank has. It spreads new prompts over
	// the ranks even where nothing waits. Default 1; negative means 0.
	BalanceWeight float64
	// OverlapLoads says that a rank loads a prefix while it computes the prompts before it, so that the
	// longer of the two counts rather than the sum.
	OverlapLoads bool
	// AlwaysLoad says that ranks load every hit, even where computing is faster. Engines with kvconn don't.
	AlwaysLoad bool
}

// EnsureDefaults fills in what is not set.
func (o *CostOptions) EnsureDefaults() {
	o.DecodeWeight = OrDefault(o.DecodeWeight, 0.1)
	o.BalanceWeight = OrDefault(o.BalanceWeight, 1)
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

// Cost places a request where the time to its first token and the time that it costs others are least:
//
//	queue + load + prefill + delay + memory + decode + balance   (seconds, lowest wins)
//
// queue is the time to load and compute the prompts before it, less the part that is done; load is the time to read
// the part of the prefix that comes from disk and object store, while other ranks of the node read from the same disk;
// prefill is the rest of the prompt over the prefill speed. The part of the prefix is loaded that makes load + prefill
// shortest, so that a hit which is slower than computing is worth nothing.
//
// delay is what other requests wait longer: those that load from the same disk, now and as busy as it was of late, and those
// that come while there is a queue. What the request takes on any rank delays those that come to this rank's own queue; what it takes
// beyond that delays those of the whole node, or a rank would do double work to spare a longer queue. memory is what it takes to
// bring back the blocks that the prompt pushes out of the rank's GPU, for the part of such blocks that does come back. decode and
// balance are charges for the rank's share of decode blocks and of new tokens; see [CostOptions]. Ties go to the rank with the least
// recent work, then the fewest requests, then the lowest place.
type Cost struct {
	opts  CostOptions
	rules Rules
	costState
	// learnt from the requests that were placed
	taken    []costTaken
	mean     float64 // of what a ready rank's GPU took in of late, tokens
	overMean float64 // 1 over it
	back     float64 // the part of what GPUs take in that comes back
	least    float64 // seconds that the request keeps the rank that it keeps least

	none     Match   // of a request without any
	inserted float64 // tokens that GPUs took in of late
	returned float64 // those of them that some GPU had before and none has now
}

// costParts are the seconds that make up the cost of one rank.
type costParts struct {
	queue, load, prefill, delay, memory, decode, balance float64
	use                                                  int32
}

func (p *costParts) total() float64 {
	return p.queue + p.load + p.prefill + p.delay + p.memory + p.decode + p.balance
}

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
	p.align(s)
	p.measure(s, r, &p.opts)
	p.cuts(s, r)
	i, decided := p.rules.Pin(s, r, d)
	switch {
	case i >= 0:
		p.explain(s, r, d)
		var parts costParts
		p.parts(s, r, i, &parts)
		p.rules.Place(s, r, d, i, ReasonPin, parts.use)
	case !decided:
		p.choose(s, r, d)
	}
	if d.Placed() {
		p.learn(r, d.Index)
	}
}

// choose places a request on the eligible rank of the lowest cost.
func (p *Cost) choose(s *State, r *Request, d *Decision) {
	best, bestTotal, use := -1, 0.0, int32(0)
	var parts costParts
	for i := range s.Ranks {
		if best >= 0 && p.work[i].queue > bestTotal || !s.Holds(i, r.Tokens) {
			continue // the queue alone costs more, or it is full
		}
		p.parts(s, r, i, &parts)
		total := parts.total()
		if best < 0 || total < bestTotal || total == bestTotal && lighter(&s.Ranks[i].Load, &s.Ranks[best].Load) {
			best, bestTotal, use = i, total, parts.use
		}
	}
	p.explain(s, r, d)
	if best < 0 {
		p.rules.Refuse(s, r, d, ReasonAllFull)
		return
	}
	p.rules.Place(s, r, d, best, ReasonScore, use)
}

// explain records the cost of every rank if that was asked for.
func (p *Cost) explain(s *State, r *Request, d *Decision) {
	if !r.Explain {
		return
	}
	var parts costParts
	for i := range s.Ranks {
		e := p.rules.Score(s, r, d, i, s.Holds(i, r.Tokens), 0)
		if !e.Eligible {
			continue
		}
		p.parts(s, r, i, &parts)
		e.Total, e.MatchTokens = parts.total(), parts.use
		e.QueueSeconds, e.LoadSeconds, e.PrefillSeconds = parts.queue, parts.load, parts.prefill
		e.DelaySeconds, e.MemorySeconds = parts.delay, parts.memory
		e.DecodeSeconds, e.BalanceSeconds = parts.decode, parts.balance
	}
}

// lighter breaks a tie.
func lighter(a, b *inflight.Rank) bool {
	return cmp.Or(cmp.Compare(a.RecentTokens, b.RecentTokens), a.ActiveRequests-b.ActiveRequests) < 0
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
