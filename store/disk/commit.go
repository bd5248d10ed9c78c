package disk

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/eventlog"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/readio"
)

// commit is a piece of work for the committer: the one goroutine that changes index and
// journal, so that both, and what is published of them, have one order.
type commit struct {
	kind  commitKind
	write *write
	read  *readio.Read
	evict *evictRequest

	subscribe *subscribeJob
	drop      *dropJob
	adopt     *adoptJob
	heal      *healJob
	forget    *forgetJob
}

type commitKind uint8

const (
	commitWrite     commitKind = iota // payload written: add to the index
	commitPresent                     // the record was there: report only
	commitFailed                      // report only
	commitDrop                        // a read found the record corrupt: remove, then report
	commitEvict                       // remove the victims of an evictJob
	commitDropSlot                    // remove the record of a dropJob
	commitSubscribe                   // take a snapshot for a subscriber
	commitAdopt                       // take over what an adoptJob found in headers
	commitHeal                        // take part in a step of a healJob
	commitForget                      // forget a namespace or a payload size
	commitHeld                        // a write that waits for its parent; comes again
)

// commitLimit bounds a batch: what a batch of the journal takes in a few hundred
// microseconds.
const commitLimit = 256

// committer runs until the queue is closed and empty.
func (s *Store) committer() {
	defer s.committed.Done()
	c := &committing{s: s, batch: s.journal.NewBatch()}
	for {
		var ok bool
		c.work, ok = s.commits.PopAll(c.work[:0], commitLimit)
		if !ok {
			return
		}
		c.run()
	}
}

// committing is the committer's scratch memory.
type committing struct {
	s       *Store
	batch   *journal.Batch
	work    []commit
	inserts []index.Insertion
	ops     []*write // of inserts
	removed []index.Removed
	freed   []index.Ref
	events  []eventlog.Event
	// owed are the slots that a failed journal left in doubt; see owe.
	owed []index.Ref

	adopting adopting
}

// run applies one batch: removals from the table first, since a record that is found no
// more can be deleted from the journal; additions to the table last, when the journal has
// them.
func (c *committing) run() {
	s := c.s
	c.inserts, c.ops, c.removed, c.freed = c.inserts[:0], c.ops[:0], c.removed[:0], c.freed[:0]
	slices.SortStableFunc(c.work, func(a, b commit) int { return cmp.Compare(a.order(), b.order()) })
	for i := range c.work {
		switch w := &c.work[i]; w.kind {
		case commitWrite:
			if s.writes.awaitsParent(w.write) {
				w.kind = commitHeld
				continue
			}
			c.replace(w.write)
			c.addWrite(w.write)
		case commitDrop:
			c.drop(w.read.Ref, w.read.Seq, fsio.OfMedium(w.read.IOErr))
		case commitDropSlot:
			c.drop(w.drop.ref, w.drop.seq, w.drop.spoilt)
		case commitEvict:
			c.runEvict(w.evict.job)
		}
	}
	err := c.commit()
	if err != nil {
		c.owe()
	}
	c.publish(err)
	if len(c.removed) > 0 || len(c.inserts) > 0 {
		s.barrier.Touch() // before anyone who is told asks for a barrier
	}
	for _, w := range c.work {
		switch w.kind {
		case commitWrite:
			if err != nil {
				w.write.Err = err
			}
			s.finishWrite(w.write)
		case commitPresent, commitFailed:
			s.finishWrite(w.write)
		case commitDrop:
			s.reads.Finish(w.read)
		case commitEvict:
			w.evict.job.err = err
			// Else slots that the journal is owed would be listed twice; it is tried again.
			if w.evict.job.restore && err == nil {
				s.space.restore(w.evict.job.segment)
			}
			close(w.evict.done)
		case commitDropSlot:
			close(w.drop.done)
		case commitAdopt:
			c.runAdopt(w.adopt)
			close(w.adopt.done)
		case commitSubscribe:
			s.runSubscribe(w.subscribe)
		case commitHeal:
			c.runHeal(w.heal)
		case commitForget:
			c.runForget(w.forget)
		}
	}
}

// drop takes the record of a slot out of the table, and the slot out of use if its bytes
// are spoilt.
func (c *committing) drop(ref index.Ref, seq uint64, spoilt bool) {
	r, ok := c.s.table.Remove(ref, seq)
	if !ok {
		return
	}
	c.removed = append(c.removed, r)
	if spoilt {
		c.s.space.spoil(ref)
		c.s.reclaim.wakeShrinker()
	}
}

// order sorts writes by their sequence numbers, which puts parents before children.
func (c *commit) order() uint64 {
	if c.kind == commitWrite {
		return c.write.seq
	}
	return 0
}

func (c *committing) addWrite(op *write) {
	c.inserts = append(c.inserts, index.Insertion{
		ID: op.id, Parent: op.Parent, Ref: op.ref, Seq: op.seq, Bytes: uint32(len(op.Payload)),
	})
	c.ops = append(c.ops, op)
}

// commit writes the batch to the journal and then to the table.
func (c *committing) commit() error {
	s := c.s
	select {
	case <-s.journal.Failed():
		// The batch may still be in use by a commit that does not return.
		return fmt.Errorf("journal failed: %w", store.ErrIO)
	default:
	}
	if len(c.owed) > 0 { // the last attempt failed before it had noted them
		if err := c.settleOwed(); err != nil {
			return err
		}
	}
	for _, r := range c.removed {
		if err := c.batch.DeleteRecord(s.space.at(r.Ref).location(r.Ref)); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
		c.freed = append(c.freed, r.Ref)
	}
	s.table.Place(c.inserts)
	for i := range c.inserts {
		if err := c.putRecord(&c.inserts[i], c.ops[i]); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	if !c.batch.Empty() {
		if err := c.batch.Commit(); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	s.table.Insert(c.inserts)
	for i := range c.inserts {
		s.space.at(c.inserts[i].Ref).settled()
	}
	s.space.addPending(c.freed)
	return nil
}

// publish tells subscribers what the batch changed. What left the table is gone whether
// or not the journal could note it.
func (c *committing) publish(err error) {
	c.events = c.events[:0]
	for _, r := range c.removed {
		c.events = append(c.events, removed(r.ID))
	}
	for i := range c.inserts {
		if in := &c.inserts[i]; err == nil && in.Added {
			c.events = append(c.events, stored(in.ID, in.Parent))
		}
	}
	c.s.events.log.Publish(c.events)
}

func (c *committing) putRecord(in *index.Insertion, op *write) error {
	g := c.s.space.at(in.Ref)
	if gen := c.s.journal.Generation(); g.noted != gen {
		if err := c.batch.PutSegment(journal.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes}); err != nil {
			return err
		}
		g.noted = gen
	}
	group := index.Group{Namespace: in.ID.Namespace, Shard: in.ID.Shard}
	if err := c.s.namespaces.Put(c.batch, group, in.Bytes); err != nil {
		return err
	}
	_, scheme := c.s.namespaces.Identity(in.ID.Namespace)
	return c.batch.PutRecord(&journal.Record{
		Location: g.location(in.Ref), Namespace: in.ID.Namespace, Shard: in.ID.Shard,
		Key: in.ID.Key, Parent: in.Parent, ParentAt: c.s.parentAt(in), Depth: in.Depth,
		Bytes: in.Bytes, Seq: in.Seq, Scope: op.Scope, KeyScheme: scheme,
	})
}

// evictRequest is a job of the reclaimer on its way to the committer.
type evictRequest struct {
	job  *evictJob
	done chan struct{}
}

// evict has the committer do a job of the reclaimer.
func (s *Store) evict(job *evictJob) {
	r := &evictRequest{job, make(chan struct{})}
	s.commits.Push(commit{kind: commitEvict, evict: r})
	<-r.done
}

// runEvict takes victims of a class, or all records of a segment, out of the table.
func (c *committing) runEvict(job *evictJob) {
	s := c.s
	select {
	case <-s.journal.Failed():
		return
	default:
	}
	before := len(c.removed)
	switch {
	case job.restore:
	case job.segment != nil:
		c.removed, job.left = s.table.Empty(job.segment.slots(), c.removed)
	default:
		c.removed = s.table.Evict(job.slotBytes, job.want, c.removed)
	}
	job.evicted = len(c.removed) - before
	s.count.evicted.Add(uint64(job.evicted))
}
