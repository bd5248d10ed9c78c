package published

import (
	"cmp"
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/policy"
)

// Scheduler is a policy of TensorRT-LLM's attention-DP scheduler: [Load], [KVAware] or [Conversation].
type Scheduler interface {
	policy.Policy
	shared() *batch
}

// Exactly returns a policy that answers exactly as TensorRT-LLM's: see the package. It uses p.
func Exactly(p Scheduler) policy.Batcher {
	b := p.shared()
	b.exactly, b.rules.FullPinsRelax = true, true
	return exact{p, b}
}

// exact is a policy that answers exactly as published.
type exact struct {
	policy.Policy
	batch *batch
}

// PlaceAll decides requests together.
func (e exact) PlaceAll(s *policy.State, reqs []*policy.Request, out []*policy.Decision) {
	e.batch.run(s, reqs, out)
}

// batch places requests together. It has the methods that the policies share and their working memory.
type batch struct {
	rules policy.Rules
	// exactly answers as published: see the package.
	exactly bool
	// decide decides the requests of order.
	decide func()

	given *policy.State // the caller's
	s     *policy.State // the same, or own
	own   policy.State  // a copy in which the placements of the batch count
	reqs  []*policy.Request
	out   []*policy.Decision
	order []int32 // requests still to decide, in the order in which they will be
}

func (b *batch) shared() *batch { return b }

// Place decides one request: a batch of one.
func (b *batch) Place(s *policy.State, r *policy.Request, d *policy.Decision) {
	b.reqs, b.out = append(b.reqs[:0], r), append(b.out[:0], d)
	b.run(s, b.reqs, b.out)
}

// run decides requests together.
func (b *batch) run(s *policy.State, reqs []*policy.Request, out []*policy.Decision) {
	b.begin(s, reqs, out)
	if b.exactly {
		b.admit()
	}
	b.decide()
	b.end()
}

// begin starts a batch: decisions are reset, requests that cannot be decided are refused.
func (b *batch) begin(s *policy.State, reqs []*policy.Request, out []*policy.Decision) {
	b.given, b.s, b.reqs, b.out = s, s, append(b.reqs[:0], reqs...), append(b.out[:0], out...)
	if len(reqs) > 1 {
		b.s = &b.own
		b.reset()
	}
	b.order = b.order[:0]
	for q := range b.reqs {
		if b.rules.Begin(s, b.reqs[q], b.out[q]) {
			b.order = append(b.order, int32(q))
		}
	}
}

// reset takes the placements of the batch out of the copy.
func (b *batch) reset() {
	b.own.BlockSize, b.own.Ranks = b.given.BlockSize, append(b.own.Ranks[:0], b.given.Ranks...)
}

// end lets go of the caller's memory.
func (b *batch) end() {
	clear(b.reqs)
	clear(b.out)
	b.given, b.s = nil, nil
}

// admit refuses the requests that TensorRT-LLM leaves in its queue: requests beyond the room of all ranks, and
// those whose strict pin names a rank that is full. A pin on an unknown rank is for the policy to judge.
func (b *batch) admit() {
	room := 0
	for i := range b.s.Ranks {
		switch r := &b.s.Ranks[i]; {
		case r.Ready && r.Capacity.MaxActive == 0:
			room = math.MaxInt
		case r.Ready && room < math.MaxInt:
			room += max(r.Capacity.MaxActive-r.Load.ActiveRequests, 0)
		}
	}
	b.each(func(r *policy.Request, d *policy.Decision) (refused bool) {
		i := -1
		if strict(r) {
			if b.s.Index(r.Pin) < 0 {
				return false
			}
			i, _ = policy.Rules{UncachedLoad: b.rules.UncachedLoad}.Pin(b.s, r, d)
			refused = i < 0
		}
		switch {
		case refused:
		case room <= 0:
			b.rules.Refuse(b.s, r, d, policy.ReasonAllFull)
			refused = true
		default:
			room--
			b.count(r, d, i)
		}
		return refused
	})
	if b.s == &b.own {
		b.reset()
	}
}

// count counts a request as placed on the i-th rank, if there is one, for the rest of the batch.
func (b *batch) count(r *policy.Request, d *policy.Decision, i int) {
	if b.s == &b.own && i >= 0 {
		b.s.Ranks[i].Load.Place(r.Tokens, int(d.UseTokens), int(d.LoadDisk), int(d.LoadObject), b.s.BlockSize)
	}
}

// strict reports whether no other rank will do for a request than the one it asks for.
func strict(r *policy.Request) bool { return r.Strict && r.Pin != policy.NoPin }

// strictFirst puts the requests with a strict pin first.
func (b *batch) strictFirst() {
	urgency := func(q int32) int {
		if strict(b.reqs[q]) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(b.order, func(x, y int32) int { return urgency(x) - urgency(y) })
}

// each calls decide for each request of order. If it returns true the request is decided and leaves the order.
func (b *batch) each(decide func(r *policy.Request, d *policy.Decision) bool) {
	kept := b.order[:0]
	for _, q := range b.order {
		r, d := b.reqs[q], b.out[q]
		if decide(r, d) {
			b.count(r, d, d.Index)
		} else {
			kept = append(kept, q)
		}
	}
	b.order = kept
}

// place decides a request for the i-th rank.
func (b *batch) place(r *policy.Request, d *policy.Decision, i int, why policy.Reason) {
	b.rules.Place(b.s, r, d, i, why, b.rules.Hit(r, i))
}

// fairShare returns how many requests a rank may have after this batch: multiplier times the mean over
// the ready ranks, rounded up twice, and no less than the busiest one has. left is the number of
// requests still to place.
func (b *batch) fairShare(multiplier float64, left int) int {
	sum, busiest, ready := left, 0, 0
	for i := range b.s.Ranks {
		if r := &b.s.Ranks[i]; r.Ready {
			ready++
			sum += r.Load.ActiveRequests
			busiest = max(busiest, r.Load.ActiveRequests)
		}
	}
	if ready == 0 {
		return 0
	}
	fair := (sum + ready - 1) / ready
	// In float64 as the published routers do; the bound is for the conversion alone.
	return max(int(math.Ceil(min(float64(multiplier*float64(fair)), 1<<30))), busiest)
}

// below reports whether the i-th rank has fewer requests than limit and takes r.
func (b *batch) below(i, limit int, r *policy.Request) bool {
	return b.s.Ranks[i].Load.ActiveRequests < limit && b.s.Holds(i, r.Tokens)
}

// least returns the place of the rank with the least load that has fewer requests than limit and takes r, the
// first from place from on, or -1. The load is the number of requests, or of prompt tokens and then of requests.
func (b *batch) least(from, limit int, r *policy.Request, byTokens bool) int {
	best, n := -1, len(b.s.Ranks)
	for k := range n {
		i := (from + k) % n
		if !b.below(i, limit, r) {
			continue
		}
		if best >= 0 {
			x, y := &b.s.Ranks[i].Load, &b.s.Ranks[best].Load
			tokens := 0
			if byTokens {
				tokens = cmp.Compare(x.PromptTokens, y.PromptTokens)
			}
			if cmp.Or(tokens, x.ActiveRequests-y.ActiveRequests) >= 0 {
				continue
			}
		}
		best = i
	}
	return best
}

// orTwo returns v if it is a finite number above 0, else 2.
func orTwo(v float64) float64 {
	if !(v > 0) || math.IsInf(v, 1) {
		return 2
	}
	return v
}

// resize returns a slice of length n, in the memory of s if that is enough.
func resize[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }
