package disk

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/eventlog"
)

// adopt has the committer do a job of the rebuild. It reports false if the store closes.
func (s *Store) adopt(job *recovery.AdoptJob) bool {
	return s.between(func(c *committing) { c.runAdopt(job) })
}

// adopting is the committer's scratch memory for adoptions.
type adopting struct {
	batch   *journal.Batch
	found   []index.Adopted
	removed []index.Removed
	unread  []index.Ref
	freed   []index.Ref
	events  []eventlog.Event
}

// runAdopt makes index and journal agree with a run of headers. The index comes first: the
// payloads are durable already, and the segment is vouched for only when the journal has
// all of its records.
func (c *committing) runAdopt(job *recovery.AdoptJob) {
	s, a := c.s, &c.adopting
	job.Err = nil
	if c.journalFailed() {
		job.Err = fmt.Errorf("journal failed: %w", store.ErrIO)
		return
	}
	if job.Complete {
		job.Err = s.completeSegment(job.Segment)
		return
	}
	if a.batch == nil {
		a.batch = s.journal.NewBatch()
	}
	a.found, a.removed, a.unread, a.freed, a.events = a.found[:0], a.removed[:0], a.unread[:0], a.freed[:0], a.events[:0]
	job.Records = s.space.WithoutBad(job.Segment, job.Records)
	for i := range job.Records {
		a.found = append(a.found, s.adopted(&job.Records[i]))
	}
	for _, slot := range job.Unread {
		a.unread = append(a.unread, job.Segment.Base+index.Ref(slot))
	}
	run := index.Range{Base: job.Segment.Base + index.Ref(job.First), Slots: job.Slots}
	s.table.PrepareAdopt(a.found)
	// A write of a record that comes meanwhile finds it in the index or is found in flight.
	s.writes.mu.Lock()
	a.removed = s.table.Adopt(run, a.found, a.unread, s.writes.writing, a.removed)
	s.writes.mu.Unlock()
	s.pins.Found(a.found)
	c.publishAdopted() // if the journal fails, the next one is written from the index
	if job.Err = c.journalAdopted(job); job.Err != nil {
		for _, r := range a.removed {
			c.owed = append(c.owed, r.Ref)
		}
		return
	}
	s.space.AddPending(a.freed)
	if len(a.freed) > 0 || len(a.events) > 0 {
		s.barrier.Touch()
	}
}

func (s *Store) adopted(r *journal.Record) index.Adopted {
	return index.Adopted{Insertion: index.Insertion{
		ID:     index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key},
		Parent: r.Parent, Ref: s.space.RefOf(r.Location), Seq: r.Seq, Bytes: r.Bytes, Depth: r.Depth, Tenant: tenants.Of(r.Scope),
	}}
}

// writing reports whether a record is being written. w.mu is held.
func (w *writes) writing(id index.ID) bool {
	return w.inFlight[id] != nil
}

// journalAdopted notes what an adoption changed.
func (c *committing) journalAdopted(job *recovery.AdoptJob) error {
	s, a := c.s, &c.adopting
	for _, r := range a.removed {
		if err := a.batch.DeleteRecord(s.space.LocationOf(r.Ref)); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
		a.freed = append(a.freed, r.Ref)
	}
	for i := range a.found {
		f := &a.found[i]
		if !f.Added && (!job.Again || !f.Known) {
			continue
		}
		r := &job.Records[i]
		r.ParentAt = s.space.LocationOf(f.ParentRef)
		if f.ParentRef != index.NoRef {
			r.Depth = f.Depth
		}
		g := index.Group{Namespace: r.Namespace, Shard: r.Shard}
		s.namespaces.FoundSize(g, int(r.Bytes))
		err := s.namespaces.Put(a.batch, g, r.Bytes)
		if err = errors.Join(err, a.batch.PutRecord(r)); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	if a.batch.Empty() {
		return nil
	}
	if err := a.batch.Commit(); err != nil {
		// The batch may still be in use by a commit that does not return.
		a.batch = nil
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	return nil
}

// publishAdopted tells subscribers what the headers changed.
func (c *committing) publishAdopted() {
	s, a := c.s, &c.adopting
	for _, r := range a.removed {
		a.events = append(a.events, eventlog.Removed(r.ID.Namespace, r.ID.Shard, r.ID.Key))
	}
	for i := range a.found {
		if f := &a.found[i]; f.Added {
			s.rebuild.Found()
			a.events = append(a.events, eventlog.Stored(f.ID.Namespace, f.ID.Shard, f.ID.Key, f.Parent))
		}
	}
	s.events.Publish(a.events)
}

// completeSegment has the journal vouch for a segment whose headers are read, and lets its
// empty slots be written to once that is durable.
func (s *Store) completeSegment(g *segment.Segment) error {
	err := s.journal.PutSegment(journal.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes})
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	s.space.Admit(g)
	s.barrier.Touch()
	return nil
}
