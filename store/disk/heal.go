package disk

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
)

// A journal that failed is replaced by a new generation, written from the index while
// look-ups and reads go on and saves are dropped. The index does not keep all that the
// journal does: scope, flags and the parent's key come from the journal that failed, which
// can be read in most cases, and otherwise from the records' headers.

const (
	// healCalm is how long a journal must work for its next failure to be taken for a new
	// one.
	healCalm = time.Minute
	// healStall is how long the old journal is waited for before the headers are read
	// instead.
	healStall = 10 * time.Second
)

// healPauses are the pauses before each try to write a new journal. They double from first to
// last. A generation that fails keeps a few hundred kilobytes for good: after healMany of them
// every pause is rare, which bounds what a disk that fails for days costs, and saving still goes
// on when the disk works again. A journal that has worked for the time forgive starts the count
// again.
type healPauses struct{ first, last, rare, forgive time.Duration }

const healMany = 100

func defaultHealPauses() healPauses {
	return healPauses{first: 100 * time.Millisecond, last: 10 * time.Second, rare: 5 * time.Minute, forgive: time.Hour}
}

// after is the pause after one of that length, 0 for none; many says that healMany generations
// have failed.
func (p healPauses) after(pause time.Duration, many bool) time.Duration {
	switch {
	case many:
		return p.rare
	case pause == 0:
		return p.first
	}
	return min(2*pause, p.last)
}

// healJob is a step of the healing that the committer takes part in.
type healJob struct {
	draft *journal.Draft // nil: only wait until no batch is under way
	err   error
	done  chan struct{}
}

// healer replaces the journal whenever it has failed, until the store stops.
func (s *Store) healer(ctx context.Context) {
	p, pause, forgiven := s.opts.healPauses, time.Duration(0), 0
	next := func() time.Duration { return p.after(pause, s.journal.Failures()-forgiven >= healMany) }
	for {
		worked := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-s.journal.Failed():
		}
		if time.Since(worked) > healCalm {
			pause = 0
		}
		if time.Since(worked) > p.forgive {
			forgiven = s.journal.Failures()
		}
		for {
			pause = next()
			sleep(ctx, pause)
			if ctx.Err() != nil {
				return
			}
			err := s.heal(ctx)
			if err == nil {
				break
			}
			s.opts.Logger.Warn("store: cannot write a new journal yet", "err", err,
				"again_in", next(),
				"remedy", "free space or descriptors, or look for I/O errors in the kernel's log")
		}
		s.opts.Logger.Info("store: journal works again", "records", s.table.Len())
	}
}

// heal writes a new generation of the journal and puts it in the place of the failed one.
func (s *Store) heal(ctx context.Context) error {
	// After this the committer adds nothing to the index before the new journal is there.
	if err := s.pushHeal(&healJob{}); err != nil {
		return err
	}
	if err := s.space.sync(); err != nil {
		return err
	}
	d, err := s.journal.Begin()
	if err != nil {
		return err
	}
	if err = s.draft(ctx, d); err == nil {
		err = d.Finish()
	}
	if err != nil {
		d.Abort()
		return err
	}
	return s.pushHeal(&healJob{draft: d})
}

func (s *Store) pushHeal(job *healJob) error {
	job.done = make(chan struct{})
	if !s.commits.TryPush(commit{kind: commitHeal, heal: job}) {
		if job.draft != nil {
			job.draft.Abort()
		}
		return store.ErrClosed
	}
	<-job.done
	return job.err
}

// runHeal runs in the committer, between two batches.
func (c *committing) runHeal(job *healJob) {
	defer close(job.done)
	if job.draft == nil {
		return
	}
	c.s.journal.Replace(job.draft)
	c.s.namespaces.Unnote()
	// What left the index while the draft was written is in it.
	job.err = c.settleOwed()
	c.s.barrier.Touch()
}

// owe notes slots whose state in the journal is not known, since it failed: they are not
// used before their deletion is durable in the next.
func (c *committing) owe() {
	for i := range c.inserts {
		c.s.space.at(c.inserts[i].Ref).settled()
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
			if g := c.s.space.at(ref); g != nil {
				if err := c.batch.DeleteRecord(g.location(ref)); err != nil {
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
	there := slices.DeleteFunc(c.owed, func(ref index.Ref) bool { return c.s.space.at(ref) == nil })
	c.s.space.addPending(there)
	c.owed = c.owed[:0]
	return nil
}

// draft writes all that the store knows into a new generation of the journal.
func (s *Store) draft(ctx context.Context, d *journal.Draft) error {
	d.PutMeta(metaStore, s.id[:])
	for name, n := range map[string]uint64{metaOpens: s.opens, metaCreated: s.created,
		metaBarrier: s.barriers.Load(), metaRecords: uint64(s.table.Len())} {
		d.PutMeta(name, binary.LittleEndian.AppendUint64(nil, n))
	}
	s.namespaces.Draft(d)
	w := &draftWriter{s: s, d: d, header: store.AlignedBuffer(format.HeaderBytes)}
	for _, g := range s.space.allSegments() {
		if !g.isUnread() && !s.space.emptied(g) { // else nobody vouches for it yet, or it goes
			d.PutSegment(journal.Segment{ID: g.ID, Slots: g.Slots, SlotBytes: g.SlotBytes})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.segment(ctx, g); err != nil {
			return err
		}
	}
	if w.lost > 0 {
		s.opts.Logger.Warn("store: records whose header cannot be read are not in the new journal", "records", w.lost,
			"remedy", "look for I/O errors in the kernel's log; they are read until the next start")
	}
	return nil
}

// draftWriter writes the records of one segment after the other.
type draftWriter struct {
	s      *Store
	d      *journal.Draft
	header []byte
	noOld  bool // the old journal does not answer
	lost   int
}

func (w *draftWriter) segment(ctx context.Context, g *segment) error {
	records := w.s.table.Describe(g.slots(), nil)
	if len(records) == 0 {
		return nil
	}
	old := w.old(ctx, g)
	for i := range records {
		r := &records[i]
		if i%loadBatch == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		entry := journal.Record{
			Location: g.location(r.Ref), Namespace: r.ID.Namespace, Shard: r.ID.Shard, Key: r.ID.Key,
			ParentAt: w.s.parentAt(r), Depth: r.Depth, Bytes: r.Bytes, Seq: r.Seq,
		}
		kept, ok := old[r.Ref]
		if !ok || kept.seq != r.Seq {
			if kept, ok = w.fromHeader(g, r); !ok {
				w.lost++
				continue
			}
		}
		entry.Parent, entry.Scope, entry.KeyScheme, entry.Flags = kept.parent, kept.scope, kept.scheme, kept.flags
		if err := w.d.PutRecord(&entry); err != nil {
			return err
		}
	}
	return nil
}

// keptEntry is what the journal keeps of a record and the index does not.
type keptEntry struct {
	seq    uint64
	parent connector.Key
	scope  connector.ScopeDigest
	scheme format.KeyScheme
	flags  uint16
}

// old reads what the journal that failed has of a segment: all of it, or what comes before
// the first entry that cannot be read.
func (w *draftWriter) old(ctx context.Context, g *segment) map[index.Ref]keptEntry {
	if w.noOld {
		return nil
	}
	result := make(chan map[index.Ref]keptEntry, 1)
	go func() {
		out := make(map[index.Ref]keptEntry)
		_ = w.s.journal.Records(g.ID, g.ID+1, func(r *journal.Record) error {
			if r.Location.Slot < g.Slots {
				out[g.base+index.Ref(r.Location.Slot)] = keptEntry{r.Seq, r.Parent, r.Scope, r.KeyScheme, r.Flags}
			}
			return nil
		}, func(error) {})
		result <- out
	}()
	stalled := time.NewTimer(healStall)
	defer stalled.Stop()
	select {
	case out := <-result:
		return out
	case <-stalled.C:
		w.noOld = true
	case <-ctx.Done():
	}
	return nil
}

func (w *draftWriter) fromHeader(g *segment, r *index.Insertion) (keptEntry, bool) {
	var h format.Record
	if err := g.file.ReadVec(w.header, nil, g.Offset(uint32(r.Ref-g.base))); err != nil {
		return keptEntry{}, false
	}
	if err := h.Decode(w.header); err != nil || h.Seq != r.Seq || h.Key != r.ID.Key {
		return keptEntry{}, false
	}
	return keptEntry{h.Seq, h.Parent, h.Scope, h.KeyScheme, h.Flags}, true
}

// parentAt is where the parent of a record is, for the journal.
func (s *Store) parentAt(r *index.Insertion) journal.Location {
	if r.ParentRef != index.NoRef {
		if p := s.space.at(r.ParentRef); p != nil {
			return p.location(r.ParentRef)
		}
	}
	return journal.NoLocation
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
