package feed

// verdict is what a batch's number says.
type verdict uint8

const (
	inOrder   verdict = iota + 1
	duplicate         // its events have been applied
	gap               // batches before it are missing
	restarted         // the engine counts from 0 again
)

// sequence follows the numbers of a rank's batches. Engines count from 0 in each process, and numbers
// arrive in order on one connection.
type sequence struct {
	next  uint64 // the number expected, if known
	known bool
	// heard is the highest number on this connection, if any; what a replay has brought since may be
	// ahead of it.
	heard    uint64
	hasHeard bool
	// unsure says that the connection is a new one, and nothing has shown yet that the engine is the
	// same process.
	unsure bool
}

// connected notes that numbers from now on come over a new connection.
func (s *sequence) connected() { s.hasHeard, s.unsure = false, s.known }

// forget makes any number the next one.
func (s *sequence) forget() { s.known, s.unsure = false, false }

// applied notes that the batch with that number, and all before it, are applied.
func (s *sequence) applied(seq uint64) { s.next, s.known, s.unsure = seq+1, true, false }

// live judges the number of a batch that arrived on the connection.
func (s *sequence) live(seq uint64) verdict {
	backwards := s.hasHeard && seq < s.heard
	repeated := s.hasHeard && seq == s.heard
	s.heard, s.hasHeard = seq, true
	switch {
	case repeated:
		return duplicate
	case backwards:
		return restarted
	case !s.known:
		if seq == 0 {
			return inOrder
		}
		return gap
	case s.unsure:
		// A lost connection and a new process look alike, even where the number is the one expected: what
		// was held may be gone.
		return restarted
	case seq < s.next:
		return duplicate
	case seq > s.next:
		return gap
	}
	return inOrder
}
