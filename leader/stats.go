package leader

import "github.com/kvconn/kvconn/leader/counted"

// Stats counts a leader's work since its start.
type Stats = counted.Stats

// Stats returns the counters.
func (l *Leader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.snapshot(len(l.requests.byHash))
}
