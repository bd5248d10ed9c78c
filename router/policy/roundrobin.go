package policy

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
