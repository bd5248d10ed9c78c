package disk

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/store/disk/namespace"
)

// forgetJob asks the committer to forget a namespace or a payload size.
type forgetJob struct {
	*namespace.Forgetting
	forgotten bool
	done      chan struct{}
}

// tidyInterval is how often namespaces without records are looked for where nobody asks.
const tidyInterval = time.Hour

// tidyPause is the shortest time between two looks, each of which goes over the whole index.
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
		if s.findsAll() { // else a record may not be found yet
			for g := range s.namespaces.WrongSizes() {
				s.freeSize(g)
			}
			s.forgetEmpty()
		}
		sleep(ctx, tidyPause)
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
		if records[f.ID] == 0 && s.forget(f) {
			s.namespaces.Forgotten(f)
		}
	}
}

// forget has the committer forget, and reports whether it has.
func (s *Store) forget(f *namespace.Forgetting) bool {
	job := &forgetJob{Forgetting: f, done: make(chan struct{})}
	if !s.commits.TryPush(commit{kind: commitForget, forget: job}) {
		return false
	}
	<-job.done
	return job.forgotten
}

// runForget runs in the committer, between two batches.
func (c *committing) runForget(job *forgetJob) {
	defer close(job.done)
	s := c.s
	if s.writes.inFlightTo(job) || !s.namespaces.Forget(job.Forgetting) {
		return
	}
	job.forgotten = true
	select {
	case <-s.journal.Failed():
		// The next one is written without. The batch may still be in use by a commit that does
		// not return.
		return
	default:
	}
	job.DeleteFrom(c.batch)
	if !c.batch.Empty() {
		_ = c.batch.Commit()
	}
}

// inFlightTo reports whether writes are under way into what is to be forgotten.
func (w *writes) inFlightTo(job *forgetJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.inFlight {
		if id.Namespace == job.ID && (!job.Size || id.Shard == job.Shard) {
			return true
		}
	}
	return false
}
