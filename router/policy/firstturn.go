package policy

// FirstTurn gives the first request of each conversation to the next rank in turn, and everything else
// to another policy: new conversations spread evenly, later turns follow their prefix. Pinned requests
// go to the other policy.
type FirstTurn struct {
	next   Policy
	b      batch
	sub    split
	cursor int
}

// NewFirstTurn returns the policy first-turn in front of next.
func NewFirstTurn(next Policy) *FirstTurn { return &FirstTurn{next: next} }

// Name returns "first-turn/" and the name of the other policy.
func (p *FirstTurn) Name() string { return "first-turn/" + p.next.Name() }

// Route places reqs.
func (p *FirstTurn) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	b.keep(func(q int32) bool {
		if !reqs[q].FirstTurn || reqs[q].Pin != NoPin {
			return true
		}
		b.placeInTurn(q, &p.cursor, ReasonRoundRobin)
		return false
	})
	p.sub.route(p.next, b)
}
