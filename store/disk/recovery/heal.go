package recovery

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/segment"
	"github.com/kvconn/kvconn/store/record"
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

// Pauses are the pauses before each try to write a new journal. They double from first to
// last. A generation that fails keeps a few hundred kilobytes for good: after healMany of them
// every pause is rare, which bounds what a disk that fails for days costs, and saving still goes
// on when the disk works again. A journal that has worked for the time forgive starts the count
// again.
type Pauses struct{ First, Last, Rare, Forgive time.Duration }

const healMany = 100

// DefaultPauses are the pauses for a disk.
func DefaultPauses() Pauses {
	return Pauses{First: 100 * time.Millisecond, Last: 10 * time.Second, Rare: 5 * time.Minute, Forgive: time.Hour}
}

// after is the pause after one of that length, 0 for none; many says that healMany generations
// have failed.
func (p Pauses) after(pause time.Duration, many bool) time.Duration {
	switch {
	case many:
		return p.Rare
	case pause == 0:
		return p.First
	}
	return min(2*pause, p.Last)
}

// Heal replaces the journal whenever it has failed, until ctx ends. commit has the one goroutine
// that changes index and journal take part: it puts a new journal in the place of the failed one,
// or only finishes what it does, with nil.
func (s *State) Heal(ctx context.Context, p Pauses, commit func(*journal.Draft) error) {
	pause, forgiven := time.Duration(0), 0
	next := func() time.Duration { return p.after(pause, s.Journal.Failures()-forgiven >= healMany) }
	for {
		worked := time.Now()
		select {
		case <-ctx.Done():
			return
		case <-s.Journal.Failed():
		}
		if time.Since(worked) > healCalm {
			pause = 0
		}
		if time.Since(worked) > p.Forgive {
			forgiven = s.Journal.Failures()
		}
		for {
			pause = next()
			fsio.Sleep(ctx, pause)
			if ctx.Err() != nil {
				return
			}
			err := s.heal(ctx, commit)
			if err == nil {
				break
			}
			s.opts.Report.Logger.Warn("store: cannot write a new journal yet", "err", err,
				"again_in", next(),
				"remedy", "free space or descriptors, or look for I/O errors in the kernel's log")
		}
		s.opts.Report.Logger.Info("store: journal works again", "records", s.Table.Len())
	}
}

// heal writes a new generation of the journal and puts it in the place of the failed one.
func (s *State) heal(ctx context.Context, commit func(*journal.Draft) error) error {
	// After this the committer adds nothing to the index before the new journal is there.
	if err := commit(nil); err != nil {
		return err
	}
	if err := s.Space.Sync(); err != nil {
		return err
	}
	d, err := s.Journal.Begin()
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
	return commit(d)
}

// draft writes all that the store knows into a new generation of the journal.
func (s *State) draft(ctx context.Context, d *journal.Draft) error {
	d.PutMeta(metaStore, s.ID[:])
	for name, n := range map[string]uint64{metaOpens: s.Opens, metaCreated: s.created,
		metaBarrier: s.barriers.Load(), metaRecords: uint64(s.Table.Len())} {
		d.PutMeta(name, binary.LittleEndian.AppendUint64(nil, n))
	}
	s.opts.Namespaces.Draft(d)
	w := &draftWriter{s: s, d: d, header: store.AlignedBuffer(record.HeaderBytes)}
	for _, g := range s.Space.AllSegments() {
		if !g.IsUnread() && !s.Space.Emptied(g) { // else nobody vouches for it yet, or it goes
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
		s.opts.Report.Logger.Warn("store: records whose header cannot be read are not in the new journal", "records", w.lost,
			"remedy", "look for I/O errors in the kernel's log; they are read until the next start")
	}
	return nil
}

// draftWriter writes the records of one segment after the other.
type draftWriter struct {
	s      *State
	d      *journal.Draft
	header []byte
	noOld  bool // the old journal does not answer
	lost   int
}

func (w *draftWriter) segment(ctx context.Context, g *segment.Segment) error {
	records := w.s.Table.Describe(g.Range(), nil)
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
			Location: g.Location(r.Ref), Namespace: r.ID.Namespace, Shard: r.ID.Shard, Key: r.ID.Key,
			ParentAt: w.s.Space.LocationOf(r.ParentRef), Depth: r.Depth, Bytes: r.Bytes, Seq: r.Seq,
		}
		kept, ok := old[r.Ref]
		if !ok || kept.seq != r.Seq {
			if kept, ok = w.fromHeader(g, r); !ok {
				w.lost++
				continue
			}
		}
		entry.Parent, entry.Scope, entry.KeyScheme, entry.Flags = kept.parent, kept.scope, kept.scheme, kept.flags
		entry.Algorithm, entry.KeyID = kept.algorithm, kept.keyID
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
	scheme record.KeyScheme
	flags  uint16

	algorithm uint8
	keyID     uint32
}

// old reads what the journal that failed has of a segment: all of it, or what comes before
// the first entry that cannot be read.
func (w *draftWriter) old(ctx context.Context, g *segment.Segment) map[index.Ref]keptEntry {
	if w.noOld {
		return nil
	}
	result := make(chan map[index.Ref]keptEntry, 1)
	go func() {
		out := make(map[index.Ref]keptEntry)
		_ = w.s.Journal.Records(g.ID, g.ID+1, func(r *journal.Record) error {
			if r.Location.Slot < g.Slots {
				out[g.Base+index.Ref(r.Location.Slot)] = keptEntry{r.Seq, r.Parent, r.Scope, r.KeyScheme, r.Flags, r.Algorithm, r.KeyID}
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

func (w *draftWriter) fromHeader(g *segment.Segment, r *index.Insertion) (keptEntry, bool) {
	var h record.Header
	if err := g.File.ReadVec(w.header, nil, g.Offset(uint32(r.Ref-g.Base))); err != nil {
		return keptEntry{}, false
	}
	if err := h.Decode(w.header); err != nil || h.Seq != r.Seq || h.Key != r.ID.Key {
		return keptEntry{}, false
	}
	return keptEntry{h.Seq, h.Parent, h.Scope, h.KeyScheme, h.Flags, h.Cipher.Algorithm, h.Cipher.KeyID}, true
}
