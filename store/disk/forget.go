package disk

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// forgetJob asks the committer to forget a namespace without records and engines, or the
// payload size of a shard without records.
type forgetJob struct {
	id    uint16
	size  bool
	shard connector.Shard
	// opened and inserted are from before the records were counted: if they are the same
	// when the committer comes to it, there still is none.
	opened, inserted uint64
	forgotten        bool
	manifest         []byte
	digest           connector.NamespaceDigest
	done             chan struct{}
}

// tidyInterval is how often namespaces without records are looked for where nobody asks.
const tidyInterval = time.Hour

// tidyPause is the shortest time between two looks, each of which goes over the whole index.
const tidyPause = time.Second

// requestTidy asks for namespaces to be tidied soon.
func (n *namespaces) requestTidy() {
	select {
	case n.tidy <- struct{}{}:
	default:
	}
}

// tidyNamespaces forgets namespaces and payload sizes that have no records, and writes
// manifests that are lost, until the store stops.
func (s *Store) tidyNamespaces(ctx context.Context) {
	defer s.background.Done()
	tick := time.NewTicker(tidyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.namespaces.tidy:
		case <-tick.C:
		}
		s.keepLost(ctx)
		if s.findsAll() { // else a record may not be found yet
			s.freeSizes()
			s.forgetEmpty()
		}
		sleep(ctx, tidyPause)
	}
}

// freeSizes looks at the payload sizes that writes did not agree with.
func (s *Store) freeSizes() {
	n := &s.namespaces
	n.mu.Lock()
	wrong := n.wrong
	n.wrong = make(map[index.Group]bool)
	n.mu.Unlock()
	for g := range wrong {
		s.freeSize(g)
	}
}

// keepLost writes the manifests whose files were lost and that an engine has brought again.
func (s *Store) keepLost(ctx context.Context) {
	n := &s.namespaces
	var lost []uint16
	n.mu.RLock()
	for i, e := range n.byID {
		if !e.gone && e.listed && !e.kept && e.manifest != nil {
			lost = append(lost, uint16(i))
		}
	}
	n.mu.RUnlock()
	for _, id := range lost {
		if ctx.Err() != nil {
			return
		}
		if err := s.keepManifest(id); err != nil {
			s.opts.Logger.Warn("store: cannot write a manifest again", "err", err,
				"remedy", "none: it is tried again with the next record of the namespace")
		}
	}
}

// forgetEmpty forgets the namespaces that no engine has open and that have no records.
func (s *Store) forgetEmpty() {
	n := &s.namespaces
	var ids []uint16
	n.mu.RLock()
	for i, e := range n.byID {
		if !e.gone && e.engines == 0 {
			ids = append(ids, uint16(i))
		}
	}
	n.mu.RUnlock()
	var jobs []*forgetJob
	for _, id := range ids {
		if job := s.forgetting(id); job != nil {
			jobs = append(jobs, job)
		}
	}
	if len(jobs) == 0 {
		return
	}
	records := make(map[uint16]int)
	for g, count := range s.table.Census(nil) {
		records[g.Namespace] += count
	}
	for _, job := range jobs {
		if records[job.id] == 0 && s.pushForget(job) {
			s.removeManifest(job)
		}
	}
}

// forgetting begins to forget a namespace: what is noted comes before the records are counted.
func (s *Store) forgetting(id uint16) *forgetJob {
	n := &s.namespaces
	n.mu.RLock()
	defer n.mu.RUnlock()
	e := n.at(id)
	if e == nil {
		return nil
	}
	return &forgetJob{id: id, opened: e.opened, inserted: e.inserted.Load(), done: make(chan struct{})}
}

func (s *Store) pushForget(job *forgetJob) bool {
	if !s.commits.tryPush(commit{kind: commitForget, forget: job}) {
		return false
	}
	<-job.done
	return job.forgotten
}

// removeManifest removes the file of a namespace that was forgotten, and frees its number.
func (s *Store) removeManifest(job *forgetJob) {
	if job.manifest != nil { // it is a file
		if err := s.opts.fs.Remove(s.manifestPath(job.digest)); err != nil && !fsio.IsNotExist(err) {
			s.opts.Logger.Warn("store: cannot remove a manifest", "err", err, "remedy", "none: it is tried again at the next start")
			return // it stays counted
		}
		s.unclaimManifest(len(job.manifest))
	}
	n := &s.namespaces
	n.mu.Lock()
	defer n.mu.Unlock()
	n.used = append(n.used, job.id)
}

// runForget runs in the committer, between two batches.
func (c *committing) runForget(job *forgetJob) {
	defer close(job.done)
	s := c.s
	if s.writes.inFlightTo(job) {
		return
	}
	n := &s.namespaces
	n.mu.Lock()
	e := n.at(job.id)
	if e == nil || e.inserted.Load() != job.inserted {
		n.mu.Unlock()
		return
	}
	var shards []connector.Shard
	switch {
	case job.size:
		shards = append(shards, job.shard)
		delete(e.sizes, job.shard)
		delete(e.noted, job.shard)
	case e.engines > 0 || e.opened != job.opened || n.keeping[job.id] != nil:
		n.mu.Unlock()
		return
	default:
		for shard := range e.noted {
			shards = append(shards, shard)
		}
		job.digest = e.digest
		if e.kept {
			job.manifest = e.manifest
		}
		e.used.Store(true) // events may name it
		n.remove(job.id)
	}
	n.mu.Unlock()
	job.forgotten = true
	select {
	case <-s.journal.Failed():
		// The next one is written without. The batch may still be in use by a commit that does
		// not return.
		return
	default:
	}
	for _, shard := range shards {
		_ = c.batch.DeleteSize(job.id, shard)
	}
	if !job.size {
		_ = c.batch.DeleteNamespace(job.id)
	}
	if !c.batch.Empty() {
		_ = c.batch.Commit()
	}
}

// inFlightTo reports whether writes are under way into what is to be forgotten.
func (w *writes) inFlightTo(job *forgetJob) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.inFlight {
		if id.Namespace == job.id && (!job.size || id.Shard == job.shard) {
			return true
		}
	}
	return false
}
