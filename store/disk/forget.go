package disk

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/namespace"
)

// tidyInterval is how often namespaces without records are looked for where nobody asks.
const tidyInterval = time.Hour

// tidyPause is the shortest time between two looks: each goes over the whole index.
const tidyPause = time.Second

// tidyNamespaces forgets namespaces and payload sizes that have no records, and writes
// manifests that are lost, until the store stops.
func (s *Store) tidyNamespaces(ctx context.Context) {
	tick := time.NewTicker(tidyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.namespaces.Tidy():
		case <-tick.C:
		}
		s.namespaces.KeepLost(ctx)
		if s.rebuild.FindsAll() { // else a record may not be found yet
			for g := range s.namespaces.WrongSizes() {
				s.freeSize(g)
			}
			s.forgetEmpty()
		}
		fsio.Sleep(ctx, tidyPause)
	}
}

// forgetEmpty forgets the namespaces that no engine has open and that have no records.
func (s *Store) forgetEmpty() {
	unopened := s.namespaces.Unopened()
	if len(unopened) == 0 {
		return
	}
	records := make(map[uint16]int)
	for g, count := range s.table.Census(nil) {
		records[g.Namespace] += count
	}
	for _, f := range unopened {
		if records[f.ID] == 0 && !s.state.Hides(f.ID) && s.forget(f) {
			s.namespaces.Forgotten(f)
		}
	}
}

// forget has the committer forget, and reports whether it has.
func (s *Store) forget(f *namespace.Forgetting) (forgotten bool) {
	s.between(func(c *committing) {
		if s.writes.inFlightTo(f) || !s.namespaces.Forget(f) {
			return
		}
		forgotten = true
		if c.journalFailed() {
			return // the next one is written without
		}
		f.DeleteFrom(c.batch)
		if !c.batch.Empty() {
			_ = c.batch.Commit()
		}
	})
	return forgotten
}

// inFlightTo reports whether writes are under way into what is to be forgotten.
func (w *writes) inFlightTo(f *namespace.Forgetting) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.inFlight {
		if id.Namespace == f.ID && (!f.Size || id.Shard == f.Shard) {
			return true
		}
	}
	return false
}
