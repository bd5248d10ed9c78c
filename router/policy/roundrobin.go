package policy

// RoundRobin gives each request to the next rank that takes it: the baseline. Pins are honoured and
// don't take a turn.
type RoundRobin struct {
	b      batch
	cursor int
}

// NewRoundRobin returns the policy round-robin.
func NewRoundRobin() *RoundRobin { return &RoundRobin{} }

// Name returns "round-robin".
func (*RoundRobin) Name() string { return "round-robin" }

// Route places reqs.
func (p *RoundRobin) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	b.strictFirst()
	b.keep(func(q int32) bool { return !b.placePinned(q) })
	for _, q := range b.order {
		b.placeInTurn(q, &p.cursor, ReasonRoundRobin)
	}
}

// placeInTurn places request q on the first rank from cursor on that takes it.
func (b *batch) placeInTurn(q int32, cursor *int, why Reason) {
	i := b.inTurn(*cursor, unlimited, b.reqs[q].Tokens)
	if i < 0 {
		b.refuse(q, ReasonAllFull)
		return
	}
	*cursor = (i + 1) % len(b.s.Ranks)
	b.place(q, i, why, b.hit(q, i))
}

// unlimited is a limit on requests that nothing reaches.
const unlimited = int(^uint(0) >> 1)

// inTurn returns the first place from cursor on whose rank has fewer requests than limit and takes one
// more, or -1.
func (b *batch) inTurn(cursor, limit, promptTokens int) int {
	n := len(b.s.Ranks)
	for k := range n {
		if i := (cursor + k) % n; b.active[i] < limit && b.holds(i, promptTokens) {
			return i
		}
	}
	return -1
}
