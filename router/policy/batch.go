package policy

import (
	"math"
	"slices"
)

// batch is the working memory of one call of Route: the loads of the ranks with the placements made so
// far. It is kept between calls.
type batch struct {
	s      *State
	reqs   []Request
	out    []Decision
	active []int     // requests, per rank
	tokens []float64 // the policy's token load, per rank
	held   []int64   // tokens held, for the capacity, per rank
	order  []int32   // requests still to decide, in order
	ready  int       // ranks that are ready

	// asPublished hands a strict pin whose rank is full to the policy.
	asPublished bool
	// uncachedLoad makes the token load one of uncached tokens rather than of whole prompts.
	uncachedLoad bool
	// gpuOnly counts the prefix in the GPU alone as cached.
	gpuOnly bool
}

// maxPromptTokens bounds a prompt, as package load does.
const maxPromptTokens = 1 << 30

// begin starts a batch: loads are copied, decisions reset, requests that cannot be decided refused. It
// reports whether any is left to decide.
func (b *batch) begin(s *State, reqs []Request, out []Decision) bool {
	b.s, b.reqs, b.out = s, reqs, out
	n := len(s.Ranks)
	b.active = resize(b.active, n)
	b.tokens = resize(b.tokens, n)
	b.held = resize(b.held, n)
	b.ready = 0
	for i := range s.Ranks {
		r := &s.Ranks[i]
		b.active[i] = r.Load.ActiveRequests
		b.held[i] = r.Load.ActiveTokens()
		if r.Ready {
			b.ready++
		}
	}
	b.resetTokens()
	b.order = b.order[:0]
	for q := range reqs {
		out[q] = Decision{Rank: -1, Index: -1, Reason: ReasonNoRanks, Scores: out[q].Scores[:0]}
		switch {
		case reqs[q].Tokens < 0 || reqs[q].Tokens > maxPromptTokens || reqs[q].Match != nil && len(reqs[q].Match) != n:
			out[q].Reason = ReasonInvalid
		case b.ready > 0:
			b.order = append(b.order, int32(q))
		case reqs[q].Strict && reqs[q].Pin != NoPin:
			_, out[q].Reason = b.pinned(&reqs[q])
		}
	}
	return len(b.order) > 0
}

// resetTokens sets the token loads to those of the state.
func (b *batch) resetTokens() {
	for i := range b.s.Ranks {
		b.tokens[i] = float64(b.s.Ranks[i].Load.PromptTokens)
		if b.uncachedLoad {
			b.tokens[i] = float64(b.s.Ranks[i].Load.UncachedTokens)
		}
	}
}

// end lets go of the caller's memory.
func (b *batch) end() { b.s, b.reqs, b.out = nil, nil, nil }

// holds reports whether the i-th rank is ready and takes one more request of the given prompt, its hard
// capacity alone considered.
func (b *batch) holds(i, promptTokens int) bool {
	r := &b.s.Ranks[i]
	return r.Ready && (r.Capacity.MaxActive == 0 || b.active[i] < r.Capacity.MaxActive) &&
		(r.Capacity.MaxTokens == 0 || b.held[i]+int64(promptTokens) <= r.Capacity.MaxTokens)
}

// anyHolds reports whether some rank holds one more request of the given prompt.
func (b *batch) anyHolds(promptTokens int) bool {
	for i := range b.s.Ranks {
		if b.holds(i, promptTokens) {
			return true
		}
	}
	return false
}

// place decides request q for the i-th rank, of whose match use tokens count.
func (b *batch) place(q int32, i int, why Reason, use int32) {
	b.explainLoads(q)
	req := &b.reqs[q]
	d := &b.out[q]
	d.Rank, d.Index, d.Reason = b.s.Ranks[i].ID, i, why
	m := req.match(i)
	d.UseTokens = min(use, int32(req.Tokens))
	d.LoadDisk, d.LoadObject = 0, 0
	switch {
	case use <= m.GPU:
	case use == m.Usable:
		d.LoadDisk, d.LoadObject = m.LoadDisk, m.LoadObject
	default:
		d.LoadDisk, d.LoadObject = m.Disk, max(use-m.GPU-m.Disk, 0)
	}
	d.LoadDisk = min(d.LoadDisk, d.UseTokens)
	d.LoadObject = min(d.LoadObject, d.UseTokens-d.LoadDisk)
	b.active[i]++
	b.held[i] += int64(req.Tokens)
	if b.uncachedLoad {
		b.tokens[i] += float64(max(req.Tokens-int(use), 0))
	} else {
		b.tokens[i] += float64(req.Tokens)
	}
}

// refuse decides that request q goes nowhere: because all ranks are full, or because of why if one
// would take it.
func (b *batch) refuse(q int32, why Reason) {
	if !b.anyHolds(b.reqs[q].Tokens) {
		why = ReasonAllFull
	}
	b.explainLoads(q)
	b.out[q].Reason = why
}

// index returns the place of the rank of the given id, or -1.
func (b *batch) index(id int32) int {
	if id < 0 {
		return -1
	}
	if int(id) < len(b.s.Ranks) && b.s.Ranks[id].ID == id {
		return int(id)
	}
	return slices.IndexFunc(b.s.Ranks, func(r Rank) bool { return r.ID == id })
}

// pinned returns the place of the pinned rank of req if it takes it, else -1 and why not.
func (b *batch) pinned(req *Request) (int, Reason) {
	i := b.index(req.Pin)
	switch {
	case i < 0:
		return -1, ReasonPinUnknown
	case !b.s.Ranks[i].Ready:
		return -1, ReasonPinNotReady
	case !b.holds(i, req.Tokens):
		return -1, ReasonPinFull
	}
	return i, ReasonPin
}

// pin returns the place of the rank that request q asks for if it takes it. Else it returns -1, and
// whether that is the end of it: a strict pin is refused.
func (b *batch) pin(q int32) (i int, decided bool) {
	req := &b.reqs[q]
	if req.Pin == NoPin {
		return -1, false
	}
	i, why := b.pinned(req)
	if i >= 0 {
		return i, true
	}
	if req.Strict && !(b.asPublished && why == ReasonPinFull) {
		b.explainLoads(q)
		b.out[q].Reason = why
		return -1, true
	}
	return -1, false
}

// placePinned decides request q by its pin, if that does. It reports whether request q is decided.
func (b *batch) placePinned(q int32) bool {
	i, decided := b.pin(q)
	if i >= 0 {
		b.place(q, i, ReasonPin, b.hit(q, i))
	}
	return decided
}

// hit returns how many tokens of request q count as cached on the i-th rank.
func (b *batch) hit(q int32, i int) int32 {
	m := b.reqs[q].match(i)
	if b.gpuOnly {
		return m.GPU
	}
	return m.Usable
}

// strictFirst puts the requests with a strict pin in front, otherwise keeping the order.
func (b *batch) strictFirst() {
	slices.SortStableFunc(b.order, func(x, y int32) int { return b.reqs[x].urgency() - b.reqs[y].urgency() })
}

// keep drops the requests from the order for which decided is true, keeping the rest in order.
func (b *batch) keep(undecided func(q int32) bool) {
	kept := b.order[:0]
	for _, q := range b.order {
		if undecided(q) {
			kept = append(kept, q)
		}
	}
	b.order = kept
}

// fairCap returns how many requests a rank may have after this batch: multiplier times the mean over
// the ready ranks, rounded up twice, and no less than the busiest one has. left is the number of
// requests still to place.
func (b *batch) fairCap(multiplier float64, left int) int {
	sum, busiest := left, 0
	for i := range b.s.Ranks {
		if b.s.Ranks[i].Ready {
			sum += b.active[i]
			busiest = max(busiest, b.active[i])
		}
	}
	fair := (sum + b.ready - 1) / b.ready
	// In float64 as the published routers do; the bound is for the conversion alone.
	return max(int(math.Ceil(min(times(multiplier, float64(fair)), 1<<30))), busiest)
}

// explainLoads records for request q what there is to say of each rank where no scores were compared.
func (b *batch) explainLoads(q int32) {
	if !b.reqs[q].Explain || len(b.out[q].Scores) > 0 {
		return
	}
	for i := range b.s.Ranks {
		b.score(q, i, b.holds(i, b.reqs[q].Tokens), 0).MatchTokens = b.hit(q, i)
	}
}

// score appends an entry for the i-th rank to the scores of request q.
func (b *batch) score(q int32, i int, eligible bool, total float64) *Score {
	d := &b.out[q]
	d.Scores = append(d.Scores, Score{Rank: b.s.Ranks[i].ID, Eligible: eligible, Total: total,
		LoadTokens: b.tokens[i], ActiveRequests: b.active[i]})
	return &d.Scores[len(d.Scores)-1]
}

func resize[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
