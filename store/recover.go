package store

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// recover opens the journal and fills the index: from the snapshot of a clean stop, else
// from the journal, else from the segments' headers.
func (s *Store) recover(ctx context.Context) error {
	if err := s.openJournal(); err != nil {
		return err
	}
	if err := s.loadNamespaces(); err != nil {
		return err
	}
	stamp, err := s.journal.Meta(metaOpens)
	if err != nil {
		return err
	}
	if len(stamp) == 8 {
		s.opens = binary.LittleEndian.Uint64(stamp)
	}
	files := s.segmentFiles()
	switch {
	case s.opens == 0 && len(files) == 0:
		s.recovered = RecoveredNew
	case s.opens == 0:
		s.recovered = RecoveredHeaders
		err = s.recoverFromHeaders(ctx, files)
	default:
		err = s.recoverFromJournal(ctx, files)
	}
	if err != nil {
		return err
	}
	s.listFreeSlots()
	if err := s.stampJournal(); err != nil {
		return err
	}
	if err := s.opts.fs.Remove(s.snapshotPath()); err != nil && !disk.IsNotExist(err) {
		return err
	}
	s.measureJournal()
	return nil
}

// segmentFiles lists the paths of the segment files.
func (s *Store) segmentFiles() []string {
	dir := filepath.Join(s.opts.Dir, segmentDir)
	entries, err := s.opts.fs.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if _, ok := segmentIDOf(e.Name()); ok {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}

func segmentIDOf(name string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix)
	if !ok {
		return 0, false
	}
	digits, ok = strings.CutSuffix(digits, segmentSuffix)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), err == nil
}

// recoverFromJournal opens the segments that the journal knows and fills the index.
func (s *Store) recoverFromJournal(ctx context.Context, files []string) error {
	noted, err := s.journal.Segments()
	if err != nil {
		return err
	}
	present := make(map[uint32]string)
	for _, path := range files {
		id, _ := segmentIDOf(filepath.Base(path))
		present[id] = path
		s.space.nextID = max(s.space.nextID, id+1)
	}
	heads := make(map[uint32]format.Segment)
	for _, e := range noted {
		s.space.nextID = max(s.space.nextID, e.ID+1)
		if _, ok := present[e.ID]; !ok {
			s.warn(fmt.Errorf("segment %d is gone with its records", e.ID))
			if err := s.journal.DeleteSegment(e.ID); err != nil {
				return err
			}
			continue
		}
		heads[e.ID] = format.Segment{Store: s.id, ID: e.ID, Slots: e.Slots, SlotBytes: e.SlotBytes}
	}
	for id, path := range present {
		if _, ok := heads[id]; !ok {
			// Made, but the journal lost it: no record in it was ever made durable.
			if err := s.opts.fs.Remove(path); err != nil {
				return err
			}
		}
	}
	if err := s.loadSnapshot(heads); err == nil {
		s.recovered = RecoveredSnapshot
		return nil
	} else if !disk.IsNotExist(err) {
		s.opts.Logger.Warn("store: snapshot is not used, the journal is read instead", "err", err,
			"remedy", "none if it is once; else look for I/O errors in the kernel's log")
	}
	s.recovered = RecoveredJournal
	if err := s.reserveIndex(heads); err != nil {
		return err
	}
	if err := s.openSegments(heads); err != nil {
		return err
	}
	return s.loadRecords(ctx)
}

// reserveIndex makes the index as large as it was at the last barrier.
func (s *Store) reserveIndex(heads map[uint32]format.Segment) error {
	b, err := s.journal.Meta(metaRecords)
	if err != nil || len(b) != 8 {
		return err
	}
	var slots uint64
	for _, h := range heads {
		slots += uint64(h.Slots)
	}
	return s.table.Reserve(int(min(binary.LittleEndian.Uint64(b), slots)))
}

// openSegments opens the segments and gives their slots references.
func (s *Store) openSegments(heads map[uint32]format.Segment) error {
	for _, head := range sortedHeads(heads) {
		base, err := s.table.AddSlots(roundRefs(head.Slots))
		if err != nil {
			return err
		}
		if err := s.openSegment(head, base); err != nil {
			return err
		}
	}
	return nil
}

func sortedHeads(heads map[uint32]format.Segment) []format.Segment {
	out := make([]format.Segment, 0, len(heads))
	for _, h := range heads {
		out = append(out, h)
	}
	slices.SortFunc(out, func(a, b format.Segment) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// openSegment opens a segment whose geometry is known. Its header is written again if it
// was damaged.
func (s *Store) openSegment(head format.Segment, base index.Ref) error {
	path := s.space.segmentPath(head.ID)
	f, err := s.opts.fs.OpenFile(path, false, s.direct)
	if err != nil {
		return err
	}
	g := &segment{Segment: head, file: f, path: path, base: base}
	if err := s.checkSegment(g); err != nil {
		return errors.Join(err, f.Close())
	}
	size, err := f.PhysicalBytes()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	g.physical = max(size, head.FileBytes()) + segmentSlackBytes
	p := s.space
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += g.physical
	p.slots += int64(head.Slots)
	p.nextID = max(p.nextID, head.ID+1)
	p.adopt(g)
	return nil
}

func (s *Store) checkSegment(g *segment) error {
	size, err := g.file.Size()
	if err != nil {
		return err
	}
	if size < g.FileBytes() {
		s.warn(fmt.Errorf("segment %d has %d bytes of %d: extended", g.ID, size, g.FileBytes()))
		if err := g.file.Allocate(g.FileBytes()); err != nil {
			return err
		}
	}
	b := disk.AlignedBytes(format.HeaderBytes)
	if err := g.file.ReadVec(b, nil, 0); err != nil {
		return err
	}
	var head format.Segment
	if err := head.Decode(b); err == nil && head == g.Segment {
		return nil
	}
	s.warn(fmt.Errorf("header of segment %d was damaged: written again", g.ID))
	g.Encode(b)
	return errors.Join(g.file.WriteVec(b, nil, 0), g.file.Datasync())
}

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
	reject := func(at journal.Location) error {
		bad++
		return drop.DeleteRecord(at)
	}
	n := 0
	err := s.journal.Records(0, 1<<32-1, func(r *journal.Record) error {
		if n++; n%loadBatch == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if !r.Readable() {
			return nil // its slot counts as free; the entry stays until it is used
		}
		g := s.space.segments[r.Location.Segment]
		if g == nil || r.Location.Slot >= g.Slots || s.namespaces.at(NamespaceID(r.Namespace)) == nil ||
			r.Bytes == 0 || r.Bytes > MaxPayloadBytes || slotBytes(int(r.Bytes)) != g.SlotBytes || r.Seq == 0 {
			return reject(r.Location)
		}
		l.add(index.Loaded{
			ID:  index.ID{Namespace: r.Namespace, Shard: r.Shard, Key: r.Key},
			Ref: g.base + index.Ref(r.Location.Slot), Seq: r.Seq, Bytes: r.Bytes,
			Parent: s.refOf(r.ParentAt), Tick: r.Tick, Depth: r.Depth,
		})
		return nil
	}, func(err error) {
		bad++
		s.opts.Logger.Warn("store: an entry of the journal is not used, its record is dropped", "err", err)
	})
	l.finish()
	if err != nil {
		return err
	}
	for _, r := range l.lost {
		if err := reject(s.space.at(r.Ref).location(r.Ref)); err != nil {
			return err
		}
	}
	s.table.Settle()
	if bad > 0 {
		s.warn(fmt.Errorf("%d entries of the journal were of no use", bad))
	}
	if drop.Empty() {
		return nil
	}
	return drop.Commit()
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

// listFreeSlots fills the lists of free slots from the index.
func (s *Store) listFreeSlots() {
	var wg sync.WaitGroup
	p := s.space
	segments := make(chan *segment)
	for range snapshotReaders {
		wg.Go(func() {
			for g := range segments {
				free := s.table.EmptySlots(g.slots(), nil)
				p.mu.Lock()
				g.class.free = append(g.class.free, free...)
				p.mu.Unlock()
			}
		})
	}
	for _, g := range p.segments {
		segments <- g
	}
	close(segments)
	wg.Wait()
}
