package recovery

import (
	"cmp"
	"context"
	"runtime"
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sync/errgroup"
)

const (
	// maxLoaders bounds how many parts of the journal are read at one time: adding to the index
	// takes turns.
	maxLoaders = 4
	// loadBatch is how many records are added to the index at one time, loaderDepth how many
	// batches may wait.
	loadBatch   = 1024
	loaderDepth = 4
)

// loader fills the index with the records of some segments, as the journal has them: one
// goroutine reads, another adds to the index.
type loader struct {
	s        *State
	segments map[uint32]*segment.Segment
	known    *[1 << 16]bool // numbers of namespaces
	batch    []index.Loaded
	batches  chan []index.Loaded
	used     chan []index.Loaded
	lost     []index.Removed    // records of an identity that a younger one has
	drop     []journal.Location // entries that cannot be
	bad      int                // entries of no use, except those of lost
	seq      uint64             // the highest
}

// run reads the segments from first up to and not including end.
func (l *loader) run(ctx context.Context, first, end uint32) error {
	l.batches, l.used = make(chan []index.Loaded, loaderDepth), make(chan []index.Loaded, loaderDepth+2)
	var adding sync.WaitGroup
	adding.Go(func() {
		for b := range l.batches {
			l.lost = l.s.Table.Load(b, l.lost)
			l.s.opts.Report.Done(len(b))
			l.used <- b[:0]
		}
	})
	n := 0
	err := l.s.Journal.Records(first, end, func(r *journal.Record) error {
		if n++; n%loadBatch == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		l.take(r)
		return nil
	}, func(error) { l.bad++ })
	l.batches <- l.batch
	close(l.batches)
	adding.Wait()
	return err
}

// take looks at one entry.
func (l *loader) take(r *journal.Record) {
	if l.s.hides(r.Algorithm, r.KeyID, int(r.Namespace)) {
		return // its slot counts as free; the entry stays until it is used
	}
	g := l.segments[r.Location.Segment]
	if g == nil {
		l.drop = append(l.drop, r.Location) // with its segment
		return
	}
	if r.Location.Slot >= g.Slots || !l.known[r.Namespace] ||
		r.Bytes == 0 || r.Bytes > store.MaxPayloadBytes || segment.SlotBytes(int(r.Bytes)) != g.SlotBytes || r.Seq == 0 {
		l.bad++
		l.drop = append(l.drop, r.Location)
		return
	}
	l.add(index.Loaded{
		ID:  index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key},
		Ref: g.Base + index.Ref(r.Location.Slot), Seq: r.Seq, Bytes: r.Bytes, Tenant: tenants.Of(r.Scope),
		Parent: l.refOf(r.ParentAt), Depth: r.Depth, ParentKey: r.Parent,
	})
}

func (l *loader) add(r index.Loaded) {
	l.seq = max(l.seq, r.Seq)
	if l.batch = append(l.batch, r); len(l.batch) < loadBatch {
		return
	}
	l.batches <- l.batch
	select {
	case l.batch = <-l.used:
	default:
		l.batch = make([]index.Loaded, 0, loadBatch)
	}
}

// loadRecords fills the index from the journal, several parts of it at one time. Entries that
// cannot be are deleted.
func (s *State) loadRecords(ctx context.Context) error {
	bounds := partJournal(s.Space.AllSegments(), min(runtime.GOMAXPROCS(0), maxLoaders))
	loaders, errs := make([]*loader, len(bounds)-1), make([]error, len(bounds)-1)
	segments, known := s.Space.ByID(), s.opts.Namespaces.Known()
	var running sync.WaitGroup
	for i := range loaders {
		l := &loader{s: s, segments: segments, known: &known}
		loaders[i] = l
		running.Go(func() { errs[i] = l.run(ctx, bounds[i], bounds[i+1]) })
	}
	running.Wait()
	for _, l := range loaders {
		s.Seq = max(s.Seq, l.seq)
	}
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	s.resolveIndex()
	return s.dropUseless(loaders)
}

// partJournal parts segments, which are in the order of their numbers, so that each part has about
// as many slots. A part is from its bound up to the next.
func partJournal(segments []*segment.Segment, parts int) (bounds []uint32) {
	slots := 0
	for _, g := range segments {
		slots += int(g.Slots)
	}
	bounds = []uint32{0}
	before := 0
	for _, g := range segments {
		if before >= slots*len(bounds)/parts && before > 0 {
			bounds = append(bounds, g.ID)
		}
		before += int(g.Slots)
	}
	return append(bounds, 1<<32-1)
}

// dropUseless deletes what the loaders found of no use.
func (s *State) dropUseless(loaders []*loader) error {
	drop, bad := s.Journal.NewBatch(), 0
	for _, l := range loaders {
		bad += l.bad + len(l.lost)
		for _, r := range l.lost {
			l.drop = append(l.drop, s.Space.At(r.Ref).Location(r.Ref))
		}
		for _, at := range l.drop {
			if err := drop.DeleteRecord(at); err != nil {
				return err
			}
		}
	}
	if bad > 0 {
		s.opts.Report.Note("%d entries of the journal were of no use", bad)
	}
	if drop.Empty() {
		return nil
	}
	return drop.Commit()
}

// resolveIndex links the records that were loaded, of several segments at one time.
func (s *State) resolveIndex() {
	var running errgroup.Group
	running.SetLimit(min(runtime.GOMAXPROCS(0), maxLoaders))
	for _, g := range s.Space.AllSegments() {
		running.Go(func() error { s.Table.Resolve(g.Range()); return nil })
	}
	_ = running.Wait()
}

// refOf is the reference of a slot, or none if its segment is not there.
func (l *loader) refOf(at journal.Location) index.Ref {
	if at == journal.NoLocation {
		return index.NoRef
	}
	g := l.segments[at.Segment]
	if g == nil || at.Slot >= g.Slots {
		return index.NoRef
	}
	return g.Base + index.Ref(at.Slot)
}
