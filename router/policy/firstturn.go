package policy

// FirstTurn gives the first request of each conversation to the next rank in turn, and everything else
// to another policy: new conversations spread evenly, later turns follow their prefix. Pinned requests
// go to the other policy.
type FirstTurn struct {
	next   Policy
	rules  Rules
	cursor int
}

// Adopter is a policy that remembers on which ranks conversations live.
type Adopter interface {
	// Adopt makes a rank the home of a conversation that another policy placed there.
	Adopt(conversation string, rank int32)
}

// NewFirstTurn returns the policy first-turn, with next for all other requests. If next is an [Adopter] it
// learns where conversations began.
func NewFirstTurn(next Policy) *FirstTurn { return &FirstTurn{next: next} }

// Name returns "first-turn/" and the name of the other policy.
func (p *FirstTurn) Name() string { return "first-turn/" + p.next.Name() }

// Place decides one request.
func (p *FirstTurn) Place(s *State, r *Request, d *Decision) {
	if !r.FirstTurn || r.Pin != NoPin {
		p.next.Place(s, r, d)
		return
	}
	if !p.rules.Begin(s, r, d) {
		return
	}
	p.rules.PlaceInTurn(s, r, d, &p.cursor)
	if next, ok := p.next.(Adopter); ok && d.Placed() {
		next.Adopt(r.Conversation, d.Rank)
	}
}

// RoundRobin gives each request to the next rank that takes it: the baseline. A request that goes where it is
// pinned takes no turn.
type RoundRobin struct {
	rules  Rules
	cursor int
}

// NewRoundRobin returns the policy round-robin.
func NewRoundRobin() *RoundRobin { return &RoundRobin{} }

// Name returns "round-robin".
func (*RoundRobin) Name() string { return "round-robin" }

// Place decides one request.
func (p *RoundRobin) Place(s *State, r *Request, d *Decision) {
	if p.rules.Begin(s, r, d) && !p.rules.PlacePinned(s, r, d) {
		p.rules.PlaceInTurn(s, r, d, &p.cursor)
	}
}
