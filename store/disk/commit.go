package disk

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/eventlog"
)

// commit is a piece of work for the committer: the one goroutine that changes index and
// journal, so that both, and what is published of them, have one order.
type commit interface {
	// prepare takes records out of the index and notes what the batch is to change.
	prepare(c *committing)
	// settle reports the end of the batch: err is why the journal does not have it.
	settle(c *committing, err error)
}

// commitLimit bounds a batch: what a batch of the journal takes in a few hundred
// microseconds.
const commitLimit = 256

// committer runs until the queue is closed and empty.
func (s *Store) committer() {
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
	c.inserts, c.ops, c.removed, c.freed = c.inserts[:0], c.ops[:0], c.removed[:0], c.freed[:0]
	slices.SortStableFunc(c.work, func(a, b commit) int { return cmp.Compare(order(a), order(b)) })
	for _, w := range c.work {
		w.prepare(c)
	}
	err := c.commit()
	if err != nil {
		c.owe()
	}
	c.publish(err)
	if len(c.removed) > 0 || len(c.inserts) > 0 {
		c.s.barrier.Touch() // before anyone who is told asks for a barrier
	}
	for _, w := range c.work {
		w.settle(c, err)
	}
	clear(c.work)
}

// order sorts writes by their sequence numbers, which puts parents before children.
func order(w commit) uint64 {
	if w, ok := w.(written); ok {
		return w.seq
	}
	return 0
}

// journalFailed reports whether the journal has failed. The batch may still be in use then, by a
// commit that does not return.
func (c *committing) journalFailed() bool {
	select {
	case <-c.s.journal.Failed():
		return true
	default:
		return false
	}
}

// task is a commit that is run between two batches.
type task struct {
	run  func(c *committing)
	done chan struct{}
}

func (t *task) prepare(*committing) {}

func (t *task) settle(c *committing, _ error) {
	t.run(c)
	close(t.done)
}

// between has the committer run f between two batches, and waits for it. It reports false if the
// store closes.
func (s *Store) between(f func(c *committing)) bool {
	t := &task{f, make(chan struct{})}
	if !s.commits.TryPush(t) {
		return false
	}
	<-t.done
	return true
}

// removal takes the record of a slot out of the store.
type removal struct {
	ref index.Ref
	seq uint64
	// spoilt is set if the slot is not to be used again.
	spoilt bool
}

func (r removal) prepare(c *committing) { c.drop(r.ref, r.seq, r.spoilt) }

// unusable drops a record that a read found to be of no use. The slot is pinned until then.
type unusable struct{ removal }

func (u unusable) settle(c *committing, _ error) { c.s.table.Unpin(u.ref) }

// discard has the committer drop a record, whose slot the caller has pinned, and returns at once:
// a journal on a disk that stalls keeps no load waiting. The record is found no more from here on.
// A save of it that comes now is committed after the drop, because the drop is in the queue before
// the record is hidden.
func (s *Store) discard(u unusable) {
	if _, _, there := s.table.PinSlot(u.ref); !there {
		return
	}
	if !s.commits.TryPush(u) {
		s.table.Unpin(u.ref)
		return
	}
	s.table.Hide(u.ref, u.seq)
}

// dropJob drops a record for a caller that waits.
type dropJob struct {
	removal
	done chan struct{}
}

func (d *dropJob) settle(*committing, error) { close(d.done) }

// drop takes the record of a slot out of the table, and the slot out of use if its bytes
// are spoilt.
func (c *committing) drop(ref index.Ref, seq uint64, spoilt bool) {
	r, ok := c.s.table.Remove(ref, seq)
	if !ok {
		return
	}
	c.removed = append(c.removed, r)
	if spoilt {
		c.s.space.Spoil(ref)
		c.s.reclaim.WakeShrinker()
	}
}

func (c *committing) addWrite(op *write) {
	c.inserts = append(c.inserts, index.Insertion{
		ID: op.id, Parent: op.Parent, Ref: op.ref, Seq: op.seq, Bytes: uint32(len(op.Payload)), Tenant: tenants.Of(op.Scope),
	})
	c.ops = append(c.ops, op)
}

// commit writes the batch to the journal and then to the table.
func (c *committing) commit() error {
	s := c.s
	if c.journalFailed() {
		return fmt.Errorf("journal failed: %w", store.ErrIO)
	}
	if len(c.owed) > 0 { // the last attempt failed before it had noted them
		if err := c.settleOwed(); err != nil {
			return err
		}
	}
	for _, r := range c.removed {
		if err := c.batch.DeleteRecord(s.space.LocationOf(r.Ref)); err != nil {
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
		s.space.At(c.inserts[i].Ref).Settled()
	}
	s.space.AddPending(c.freed)
	return nil
}

// publish tells subscribers what the batch changed. What left the table is gone whether
// or not the journal could note it.
func (c *committing) publish(err error) {
	c.events = c.events[:0]
	for _, r := range c.removed {
		c.events = append(c.events, eventlog.Removed(r.ID.Namespace, r.ID.Shard, r.ID.Key))
	}
	for i := range c.inserts {
		if in := &c.inserts[i]; err == nil && in.Added {
			c.events = append(c.events, eventlog.Stored(in.ID.Namespace, in.ID.Shard, in.ID.Key, in.Parent))
		}
	}
	c.s.events.Publish(c.events)
}

func (c *committing) putRecord(in *index.Insertion, op *write) error {
	g := c.s.space.At(in.Ref)
	if gen := c.s.journal.Generation(); g.Noted != gen {
		if err := c.batch.PutSegment(journal.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes}); err != nil {
			return err
		}
		g.Noted = gen
	}
	group := index.Group{Namespace: in.ID.Namespace, Shard: in.ID.Shard}
	if err := c.s.namespaces.Put(c.batch, group, in.Bytes); err != nil {
		return err
	}
	_, scheme := c.s.namespaces.Identity(in.ID.Namespace)
	return c.batch.PutRecord(&journal.Record{
		Location: g.Location(in.Ref), Namespace: in.ID.Namespace, Shard: in.ID.Shard,
		Key: in.ID.Key, Parent: in.Parent, ParentAt: c.s.space.LocationOf(in.ParentRef), Depth: in.Depth,
		Bytes: in.Bytes, Seq: in.Seq, Scope: op.Scope, KeyScheme: scheme, Algorithm: op.algorithm, KeyID: op.keyID,
	})
}

// eviction is a job of the reclaimer.
type eviction struct {
	*segment.EvictJob
	done chan struct{}
}

// evict has the committer do a job of the reclaimer.
func (s *Store) evict(job *segment.EvictJob) {
	e := &eviction{job, make(chan struct{})}
	s.commits.Push(e)
	<-e.done
}

// prepare takes victims of a class, or all records of a segment, out of the table.
func (e *eviction) prepare(c *committing) {
	if c.journalFailed() {
		return
	}
	before := len(c.removed)
	switch {
	case e.Restore:
	case e.Segment != nil:
		c.removed, e.Left = c.s.table.Empty(e.Segment.Range(), c.removed)
	default:
		c.removed = c.s.table.Evict(e.SlotBytes, e.Want, c.removed)
	}
	e.Evicted = len(c.removed) - before
	c.s.count.Evicted.Add(uint64(e.Evicted))
}

func (e *eviction) settle(c *committing, err error) {
	e.Err = err
	// Else slots that the journal is owed would be listed twice; it is tried again.
	if e.Restore && err == nil {
		c.s.space.Restore(e.Segment)
		c.s.barrier.Touch()
	}
	close(e.done)
}

// heal has the committer put a new journal in the place of the failed one, or only finish its
// batch, with nil.
func (s *Store) heal(d *journal.Draft) (err error) {
	open := s.between(func(c *committing) {
		if d == nil {
			return
		}
		s.journal.Replace(d)
		s.namespaces.Unnote()
		// What left the index while the draft was written is in it.
		err = c.settleOwed()
		s.barrier.Touch()
	})
	if !open {
		if d != nil {
			d.Abort()
		}
		return store.ErrClosed
	}
	return err
}

// owe notes slots whose state in the journal is not known, since it failed: they are not
// used before their deletion is durable in the next.
func (c *committing) owe() {
	for i := range c.inserts {
		c.s.space.At(c.inserts[i].Ref).Settled()
		c.owed = append(c.owed, c.inserts[i].Ref)
	}
	for _, r := range c.removed {
		c.owed = append(c.owed, r.Ref)
	}
}

// settleOwed deletes what is owed and lets a barrier free the slots.
func (c *committing) settleOwed() error {
	for from := 0; from < len(c.owed); from += commitLimit {
		for _, ref := range c.owed[from:min(from+commitLimit, len(c.owed))] {
			if g := c.s.space.At(ref); g != nil {
				if err := c.batch.DeleteRecord(g.Location(ref)); err != nil {
					return fmt.Errorf("%w: %w", store.ErrIO, err)
				}
			}
		}
		if c.batch.Empty() {
			continue
		}
		if err := c.batch.Commit(); err != nil {
			return fmt.Errorf("%w: %w", store.ErrIO, err)
		}
	}
	there := slices.DeleteFunc(c.owed, func(ref index.Ref) bool { return c.s.space.At(ref) == nil })
	c.s.space.AddPending(there)
	c.owed = c.owed[:0]
	return nil
}
