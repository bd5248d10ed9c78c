package store

import (
	"context"

	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// loadBatch is how many records are added to the index under one hold of its lock.
const loadBatch = 1024

// loader fills the index with records that are found while the store opens, beside the
// goroutine that finds them.
type loader struct {
	s       *Store
	batch   []index.Loaded
	batches chan []index.Loaded
	used    chan []index.Loaded
	done    chan struct{}
	lost    []index.Removed // valid after finish
}

// loaderDepth is how many batches may wait.
const loaderDepth = 4

func newLoader(s *Store) *loader {
	l := &loader{s: s, batches: make(chan []index.Loaded, loaderDepth), used: make(chan []index.Loaded, loaderDepth+1), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		for b := range l.batches {
			l.lost = s.table.Load(b, l.lost)
			s.progress.done.Add(int64(len(b)))
			l.used <- b[:0]
		}
	}()
	return l
}

func (l *loader) add(r index.Loaded) {
	if r.Seq > l.s.seq.Load() {
		l.s.seq.Store(r.Seq)
	}
	if l.batch = append(l.batch, r); len(l.batch) == loadBatch {
		l.flush()
	}
}

func (l *loader) flush() {
	l.batches <- l.batch
	select {
	case l.batch = <-l.used:
	default:
		l.batch = make([]index.Loaded, 0, loadBatch)
	}
}

// finish waits until everything is in the index.
func (l *loader) finish() {
	l.batches <- l.batch
	close(l.batches)
	for {
		select {
		case <-l.used:
		case <-l.done:
			return
		}
	}
}

// loadRecords fills the index from the journal. Entries that cannot be are deleted.
func (s *Store) loadRecords(ctx context.Context) error {
	l := newLoader(s)
	drop := s.journal.NewBatch()
	bad := 0
	n := 0
	err := s.journal.Records(0, 1<<32-1, func(r *journal.Record) error {
		if n++; n%loadBatch == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !r.Readable() {
			return nil // its slot counts as free; the entry stays until it is used
		}
		g := s.space.segments[r.Location.Segment]
		if g == nil {
			return drop.DeleteRecord(r.Location) // with its segment
		}
		if r.Location.Slot >= g.Slots || s.namespaces.at(NamespaceID(r.Namespace)) == nil ||
			r.Bytes == 0 || r.Bytes > MaxPayloadBytes || slotBytes(int(r.Bytes)) != g.SlotBytes || r.Seq == 0 {
			bad++
			return drop.DeleteRecord(r.Location)
		}
		l.add(index.Loaded{
			ID:  index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key},
			Ref: g.base + index.Ref(r.Location.Slot), Seq: r.Seq, Bytes: r.Bytes,
			Parent: s.refOf(r.ParentAt), Depth: r.Depth, ParentKey: r.Parent,
		})
		return nil
	}, func(error) { bad++ })
	l.finish()
	if err != nil {
		return err
	}
	for _, r := range l.lost {
		bad++
		if err := drop.DeleteRecord(s.space.at(r.Ref).location(r.Ref)); err != nil {
			return err
		}
	}
	s.resolveIndex()
	if bad > 0 {
		s.note("%d entries of the journal were of no use", bad)
	}
	if drop.Empty() {
		return nil
	}
	return drop.Commit()
}

// resolveIndex links the records that were loaded.
func (s *Store) resolveIndex() {
	for _, g := range s.space.allSegments() {
		s.table.Resolve(g.slots())
	}
}

func (s *Store) refOf(at journal.Location) index.Ref {
	if at == journal.NoLocation {
		return index.NoRef
	}
	g := s.space.segments[at.Segment]
	if g == nil || at.Slot >= g.Slots {
		return index.NoRef
	}
	return g.base + index.Ref(at.Slot)
}
