package disk

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/eventlog"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// adoptJob asks the committer to make index and journal agree with record headers.
type adoptJob struct {
	segment      *segment
	first, slots uint32
	// records are what the headers name, in the order of their slots; unread are the slots
	// whose headers the disk did not give, damaged counts those that are bad.
	records []journal.Record
	unread  []uint32
	damaged int
	// complete says that all slots of the segment were read: the journal vouches for it
	// from now on, and its free slots can be written to.
	complete bool
	// again is set if the journal did not get everything the last time.
	again bool
	err   error
	done  chan struct{}
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
func (c *committing) runAdopt(job *adoptJob) {
	s, a := c.s, &c.adopting
	job.err = nil
	select {
	case <-s.journal.Failed():
		job.err = fmt.Errorf("journal failed: %w", store.ErrIO)
		return
	default:
	}
	if job.complete {
		job.err = s.completeSegment(job.segment)
		return
	}
	if a.batch == nil {
		a.batch = s.journal.NewBatch()
	}
	a.found, a.removed, a.unread, a.freed, a.events = a.found[:0], a.removed[:0], a.unread[:0], a.freed[:0], a.events[:0]
	job.records = s.space.withoutBad(job.segment, job.records)
	for i := range job.records {
		a.found = append(a.found, s.adopted(&job.records[i]))
	}
	for _, slot := range job.unread {
		a.unread = append(a.unread, job.segment.base+index.Ref(slot))
	}
	run := index.Range{Base: job.segment.base + index.Ref(job.first), Slots: job.slots}
	s.table.PrepareAdopt(a.found)
	// A write of a record that comes meanwhile finds it in the index or is found in flight.
	s.writes.mu.Lock()
	a.removed = s.table.Adopt(run, a.found, a.unread, s.writes.writing, a.removed)
	s.writes.mu.Unlock()
	c.publishAdopted() // if the journal fails, the next one is written from the index
	if job.err = c.journalAdopted(job); job.err != nil {
		for _, r := range a.removed {
			c.owed = append(c.owed, r.Ref)
		}
		return
	}
	s.space.addPending(a.freed)
	if len(a.freed) > 0 || len(a.events) > 0 {
		s.barrier.Touch()
	}
}

func (s *Store) adopted(r *journal.Record) index.Adopted {
	return index.Adopted{Insertion: index.Insertion{
		ID:     index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key},
		Parent: r.Parent, Ref: s.space.refOf(r.Location), Seq: r.Seq, Bytes: r.Bytes, Depth: r.Depth,
	}}
}

// writing reports whether a record is being written. w.mu is held.
func (w *writes) writing(id index.ID) bool {
	return w.inFlight[id] != nil
}

// journalAdopted notes what an adoption changed.
func (c *committing) journalAdopted(job *adoptJob) error {
	s, a := c.s, &c.adopting
	for _, r := range a.removed {
		if err := a.batch.DeleteRecord(s.space.at(r.Ref).location(r.Ref)); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
		a.freed = append(a.freed, r.Ref)
	}
	for i := range a.found {
		f := &a.found[i]
		if !f.Added && (!job.again || !f.Known) {
			continue
		}
		r := &job.records[i]
		r.ParentAt = journal.NoLocation
		if f.ParentRef != index.NoRef {
			r.Depth = f.Depth
			if p := s.space.at(f.ParentRef); p != nil {
				r.ParentAt = p.location(f.ParentRef)
			}
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
		a.events = append(a.events, removed(r.ID))
	}
	for i := range a.found {
		if f := &a.found[i]; f.Added {
			s.rebuilt.found.Add(1)
			a.events = append(a.events, stored(f.ID, f.Parent))
		}
	}
	s.events.log.Publish(a.events)
}

// completeSegment has the journal vouch for a segment whose headers are read, and lets its
// empty slots be written to once that is durable.
func (s *Store) completeSegment(g *segment) error {
	err := s.journal.PutSegment(journal.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes})
	if err != nil {
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	s.space.admit(g)
	s.barrier.Touch()
	return nil
}
