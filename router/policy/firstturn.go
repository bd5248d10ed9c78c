package policy

// FirstTurn gives the first request of each conversation to the next rank in turn, and everything else
// to another policy: new conversations spread evenly, later turns follow their prefix. Pinned requests
// go to the other policy, which is told of the conversations if it keeps them on their ranks.
type FirstTurn struct {
	next   Policy
	b      batch
	sub    split
	cursor int
}

// adopter is a policy that remembers on which ranks conversations live.
type adopter interface {
	adopt(conversation string, rank int32)
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
	p.sub.routeStrict(p.next, b, func(int32) bool { return true })
	b.keep(func(q int32) bool {
		if !reqs[q].FirstTurn || reqs[q].Pin != NoPin {
			return true
		}
		b.placeInTurn(q, &p.cursor, ReasonRoundRobin)
		if next, ok := p.next.(adopter); ok && out[q].Placed() {
			next.adopt(reqs[q].Conversation, out[q].Rank)
		}
		return false
	})
	p.sub.route(p.next, b)
}
