package journal

import "github.com/cockroachdb/pebble/v2"

// Snapshot is the journal's records at one moment.
type Snapshot struct {
	g *generation
	s *pebble.Snapshot
}

// Snapshot returns the records as they are now. It must be closed. It ends with [ErrFailed]
// when a new generation of the journal has taken the place of a failed one.
func (j *Journal) Snapshot() (*Snapshot, error) {
	taken := make(chan *pebble.Snapshot, 1)
	g := j.gen.Load()
	if err := g.call("take snapshot of journal", func() error { taken <- g.db.NewSnapshot(); return nil }); err != nil {
		return nil, err
	}
	return &Snapshot{g, <-taken}, nil
}

// Records calls f for every record. The record is valid during the call.
func (s *Snapshot) Records(f func(*Record) error) error {
	return records(s.s, 0, 1<<32-1, f, func(error) {}, s.g.step)
}

// Close lets go of the snapshot. There is nothing to let go of in a journal that failed.
func (s *Snapshot) Close() error {
	if s.g.failure() != nil {
		return nil
	}
	return s.g.call("close snapshot of journal", s.s.Close)
}
