package policy

import "math"

// Rules are common to all policies: which requests cannot be decided, what a pin does, and what a decision says.
// The fields are the points in which policies differ.
type Rules struct {
	// UncachedLoad makes the uncached tokens of a rank its token load, not its whole prompts.
	UncachedLoad bool
	// GPUOnly counts the prefix in the GPU alone as cached.
	GPUOnly bool
	// FullPinsRelax treats a strict pin whose rank is full like one that is not strict.
	FullPinsRelax bool
}

// maxPromptTokens bounds a prompt, as package inflight does.
const maxPromptTokens = 1 << 30

// Begin empties d. It reports whether a rank is to be chosen. If not, d says why: the request is invalid, or no
// rank is ready.
func (Rules) Begin(s *State, r *Request, d *Decision) bool {
	*d = Decision{Rank: -1, Index: -1, Reason: ReasonNoRanks, Scores: d.Scores[:0]}
	if r.Tokens < 0 || r.Tokens > maxPromptTokens || r.Match != nil && len(r.Match) != len(s.Ranks) {
		d.Reason = ReasonInvalid
		return false
	}
	for i := range s.Ranks {
		if s.Ranks[i].Ready {
			return true
		}
	}
	if r.Strict && r.Pin != NoPin {
		_, d.Reason = s.pinned(r)
	}
	return false
}

// Hit returns how many tokens of a request count as cached on the i-th rank.
func (u Rules) Hit(r *Request, i int) int32 {
	if u.GPUOnly {
		return r.match(i).GPU
	}
	return r.match(i).Usable
}

// Load returns the token load of the i-th rank.
func (u Rules) Load(s *State, i int) float64 {
	if u.UncachedLoad {
		return float64(s.Ranks[i].Load.UncachedTokens)
	}
	return float64(s.Ranks[i].Load.PromptTokens)
}

// Place decides a request for the i-th rank, where use tokens of its match count.
func (u Rules) Place(s *State, r *Request, d *Decision, i int, why Reason, use int32) {
	u.explain(s, r, d)
	d.Rank, d.Index, d.Reason = s.Ranks[i].ID, i, why
	m := r.match(i)
	d.UseTokens = min(use, int32(r.Tokens))
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
}

// Refuse decides that a request goes nowhere: because all ranks are full, or because of why if one would
// take it.
func (u Rules) Refuse(s *State, r *Request, d *Decision, why Reason) {
	u.explain(s, r, d)
	if s.InTurn(0, math.MaxInt, r.Tokens) < 0 {
		why = ReasonAllFull
	}
	d.Reason = why
}

// PlaceInTurn places a request on the first rank from *cursor on that takes it, and moves the cursor beyond
// it.
func (u Rules) PlaceInTurn(s *State, r *Request, d *Decision, cursor *int) {
	i := s.InTurn(*cursor, math.MaxInt, r.Tokens)
	if i < 0 {
		u.Refuse(s, r, d, ReasonAllFull)
		return
	}
	*cursor = (i + 1) % len(s.Ranks)
	u.Place(s, r, d, i, ReasonRoundRobin, u.Hit(r, i))
}

// Pin returns the place of the rank that a request asks for if that rank takes it, else -1. decided is false if
// the policy has to choose; it is true with -1 if the pin is strict: then d is a refusal.
func (u Rules) Pin(s *State, r *Request, d *Decision) (i int, decided bool) {
	if r.Pin == NoPin {
		return -1, false
	}
	i, why := s.pinned(r)
	if i >= 0 {
		return i, true
	}
	if !r.Strict || u.FullPinsRelax && why == ReasonPinFull {
		return -1, false
	}
	u.explain(s, r, d)
	d.Reason = why
	return -1, true
}

// PlacePinned decides a request by its pin, if that does. It reports whether the request is decided.
func (u Rules) PlacePinned(s *State, r *Request, d *Decision) bool {
	i, decided := u.Pin(s, r, d)
	if i >= 0 {
		u.Place(s, r, d, i, ReasonPin, u.Hit(r, i))
	}
	return decided
}

// Score appends an entry for the i-th rank to the scores.
func (u Rules) Score(s *State, r *Request, d *Decision, i int, eligible bool, total float64) *Score {
	d.Scores = append(d.Scores, Score{
		Rank: s.Ranks[i].ID, Eligible: eligible, Total: total, LoadTokens: u.Load(s, i),
		ActiveRequests: s.Ranks[i].Load.ActiveRequests, Prefix: r.match(i),
	})
	return &d.Scores[len(d.Scores)-1]
}

// explain records what can be said of each rank where no scores were compared, if that was asked for.
func (u Rules) explain(s *State, r *Request, d *Decision) {
	if !r.Explain || len(d.Scores) > 0 {
		return
	}
	for i := range s.Ranks {
		u.Score(s, r, d, i, s.Holds(i, r.Tokens), 0).MatchTokens = u.Hit(r, i)
	}
}

// pinned returns the place of the rank that r asks for if it takes it, else -1 and why not.
func (s *State) pinned(r *Request) (int, Reason) {
	i := s.Index(r.Pin)
	switch {
	case i < 0:
		return -1, ReasonPinUnknown
	case !s.Ranks[i].Ready:
		return -1, ReasonPinNotReady
	case !s.Holds(i, r.Tokens):
		return -1, ReasonPinFull
	}
	return i, ReasonPin
}
