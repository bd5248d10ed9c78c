// Package httplimit keeps one client from taking all of an HTTP server: it bounds the
// connections of all clients together, and of each. A client is a user of this machine, or an
// address elsewhere.
package httplimit

import "sync"

// Client is the origin of a connection.
type Client struct {
	// Name is the user ("uid 1000") or the address.
	Name string
	// Trusted is set for root and for the user that this process runs as.
	Trusted bool
}

// Shares divides a number of things among clients: at most a quarter for each, a half for a
// trusted one, and the last quarter for trusted clients only. So neither one client nor all
// strangers together can take everything. It is safe for concurrent use.
type Shares struct {
	most int

	mu        sync.Mutex
	taken     map[Client]int
	all       int
	strangers int
}

// NewShares divides most things.
func NewShares(most int) *Shares { return &Shares{most: most, taken: make(map[Client]int)} }

// Take takes one thing. It reports false if the client has its share or none is left.
func (s *Shares) Take(c Client) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	share := max(1, s.most/4)
	if c.Trusted {
		share = max(1, s.most/2)
	}
	if s.taken[c] >= share || s.all >= s.most || !c.Trusted && s.strangers >= max(1, s.most-s.most/4) {
		return false
	}
	s.taken[c]++
	s.all++
	if !c.Trusted {
		s.strangers++
	}
	return true
}

// Give gives one back.
func (s *Shares) Give(c Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[c]--; s.taken[c] == 0 {
		delete(s.taken, c)
	}
	s.all--
	if !c.Trusted {
		s.strangers--
	}
}

// Taken is how many are taken.
func (s *Shares) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all
}
