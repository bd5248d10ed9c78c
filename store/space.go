package store

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/internal/disk"
	"github.com/kvconn/kvconn/store/internal/format"
	"github.com/kvconn/kvconn/store/internal/index"
	"github.com/kvconn/kvconn/store/internal/journal"
)

// refAlign is what the first reference of every segment is a multiple of, so that a table
// with one entry for so many slots leads from a reference to its segment.
const refAlign = 64

// segment is an open segment file.
type segment struct {
	format.Segment
	file     disk.File
	path     string
	base     index.Ref
	physical int64 // bytes set aside for it under the cap
	class    *class
	// made is the index's clock when the segment was made, 0 if it was there at open.
	made uint32
	// dirty is set when a payload was written since the last barrier.
	dirty atomic.Bool
	// writing is the number of slots given out and not committed yet.
	writing atomic.Int64
	// noted is the generation of the journal that surely has the segment; the committer's.
	noted uint64
	// retired segments give out no slots; guarded by space.mu.
	retired bool
}

func (g *segment) slots() index.Range { return index.Range{Base: g.base, Slots: g.Slots} }

func (g *segment) location(ref index.Ref) journal.Location {
	return journal.Location{Segment: g.ID, Slot: uint32(ref - g.base)}
}

// class is all that has to do with slots of one size.
type class struct {
	slotBytes int64
	segments  []*segment
	slots     int64       // in all segments
	free      []index.Ref // may be written
	pending   int64       // wait for a barrier
	// freed is closed and replaced when slots become free or a segment is made.
	freed   chan struct{}
	waiting int // writers waiting for a slot
	// pressed is set when a writer took a slot and few were left: only then is it worth
	// evicting ahead.
	pressed bool
	making  bool
	// victims are the next to be evicted, chosen by the last scan; scanned is the order
	// of the warmest one it chose.
	victims []index.Victim
	scanned uint64
}

// space keeps the segments, their free slots and the accounting of physical bytes. No
// lock is held while it makes or removes a file.
type space struct {
	fs       disk.FS
	dir      string
	store    format.StoreID
	table    *index.Table
	journal  *journal.Journal
	direct   bool
	maxBytes int64
	nominal  int64 // bytes of a segment
	memTable int64
	// manifests is what the manifests occupy.
	manifests func() int64

	mu       sync.Mutex
	classes  map[int64]*class
	segments map[uint32]*segment
	nextID   uint32
	bytes    int64 // physical bytes of the segments
	slots    int64
	journalB int64 // physical bytes of the journal when last measured
	pending  []index.Ref
	full     bool // the filesystem had no room for the last segment

	refMu sync.RWMutex
	byRef []*segment
}

// at returns the segment of a slot.
func (p *space) at(ref index.Ref) *segment {
	p.refMu.RLock()
	defer p.refMu.RUnlock()
	if int(ref/refAlign) >= len(p.byRef) {
		return nil
	}
	return p.byRef[ref/refAlign]
}

func (p *space) setRefs(g *segment, value *segment) {
	p.refMu.Lock()
	defer p.refMu.Unlock()
	first, last := int(g.base/refAlign), int((g.base+index.Ref(g.Slots)-1)/refAlign)
	for len(p.byRef) <= last {
		p.byRef = append(p.byRef, nil)
	}
	for i := first; i <= last; i++ {
		p.byRef[i] = value
	}
}

func roundRefs(slots uint32) uint32 { return (slots + refAlign - 1) &^ (refAlign - 1) }

// classOf returns the class of a slot size. p.mu is held.
func (p *space) classOf(slotBytes int64) *class {
	c := p.classes[slotBytes]
	if c == nil {
		c = &class{slotBytes: slotBytes, freed: make(chan struct{})}
		p.classes[slotBytes] = c
	}
	return c
}

func (c *class) wake() {
	close(c.freed)
	c.freed = make(chan struct{})
}

// reserved is what the store sets aside beside the segments when these have that many
// slots: the journal, the snapshot and small files. p.mu is held.
func (p *space) reserved(slots int64) int64 {
	j := max(journal.ReservedBytes(p.memTable, slots), p.journalB)
	return j + slots*snapshotSlotBytes + smallFilesBytes + p.manifests()
}

const (
	// snapshotSlotBytes bounds what one slot needs in a snapshot.
	snapshotSlotBytes = 64
	// smallFilesBytes is for the files of fixed size and directories.
	smallFilesBytes = 256 << 10
	// extentBytes is what the file system may add to a segment for each slot: while only
	// some of its slots have been written, they are extents of their own.
	extentBytes        = 24
	segmentSlackBytes  = 16 << 10
	minShrunkSegments  = 8 // a last segment may be this fraction of the nominal size
	maxSlotsOfASegment = 1 << 20
)

// plan returns the segment to make next for a class, or false if the cap leaves no room.
// p.mu is held.
func (p *space) plan(c *class) (format.Segment, int64, bool) {
	room := p.maxBytes - p.bytes - p.reserved(p.slots) - segmentSlackBytes - format.HeaderBytes
	each := c.slotBytes + extentBytes + p.reserved(p.slots+1) - p.reserved(p.slots)
	if p.journalB > journal.ReservedBytes(p.memTable, p.slots) {
		each = c.slotBytes + extentBytes + journal.ReservedBytes(0, 1) + snapshotSlotBytes
	}
	want := min(max(1, p.nominal/c.slotBytes), maxSlotsOfASegment)
	slots := min(want, room/each)
	if slots < 1 || slots < want/minShrunkSegments && c.slots > 0 {
		return format.Segment{}, 0, false
	}
	s := format.Segment{Store: p.store, ID: p.nextID, Slots: uint32(slots), SlotBytes: c.slotBytes}
	return s, s.FileBytes() + slots*extentBytes + segmentSlackBytes, true
}

// take returns a free slot, or the channel that is closed when there may be one. grow says
// that the caller should make a segment first.
func (p *space) take(slotBytes int64) (ref index.Ref, freed <-chan struct{}, grow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.classOf(slotBytes)
	if n := len(c.free); n > 0 {
		ref = c.free[n-1]
		c.free = c.free[:n-1]
		p.at(ref).writing.Add(1)
		return ref, nil, false
	}
	if !c.making && !p.full {
		if _, _, ok := p.plan(c); ok {
			c.making = true
			return index.NoRef, c.freed, true
		}
	}
	return index.NoRef, c.freed, false
}

// giveBack returns a slot that take gave and that holds no record.
func (p *space) giveBack(ref index.Ref) {
	g := p.at(ref)
	p.mu.Lock()
	defer p.mu.Unlock()
	g.writing.Add(-1)
	if !g.retired {
		g.class.free = append(g.class.free, ref)
		g.class.wake()
	}
}

// grow makes the segment for which take set making.
func (p *space) grow(slotBytes int64) error {
	p.mu.Lock()
	c := p.classOf(slotBytes)
	head, physical, ok := p.plan(c)
	if ok {
		// Counted before it is made, so that no moment sees the cap passed.
		p.bytes += physical
		p.slots += int64(head.Slots)
		p.nextID++
	}
	p.mu.Unlock()
	var g *segment
	var err error
	if ok {
		g, err = p.create(head, physical)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.making = false
	c.wake()
	if !ok {
		return nil
	}
	if err != nil {
		p.bytes -= physical
		p.slots -= int64(head.Slots)
		p.full = errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		return err
	}
	p.adopt(g)
	// Taken from the end: ascending slots make long extents.
	for i := g.Slots; i > 0; i-- {
		c.free = append(c.free, g.base+index.Ref(i-1))
	}
	return nil
}

func (p *space) segmentPath(id uint32) string {
	return filepath.Join(p.dir, fmt.Sprintf("%s%08d%s", segmentPrefix, id, segmentSuffix))
}

// create makes and preallocates a segment file.
func (p *space) create(head format.Segment, physical int64) (*segment, error) {
	path := p.segmentPath(head.ID)
	f, err := p.fs.OpenFile(path, true, p.direct)
	if err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	g := &segment{Segment: head, file: f, path: path, physical: physical, made: p.table.Clock()}
	header := disk.AlignedBytes(format.HeaderBytes)
	head.Encode(header)
	err = f.Allocate(head.FileBytes())
	if err == nil {
		err = f.WriteVec(header, nil, 0)
	}
	if err == nil {
		err = f.Datasync()
	}
	if err == nil {
		err = p.fs.SyncDir(p.dir)
	}
	if err == nil {
		err = p.journal.PutSegment(journal.Segment{ID: head.ID, Slots: head.Slots, SlotBytes: head.SlotBytes})
	}
	if err == nil {
		g.base, err = p.table.AddSlots(roundRefs(head.Slots))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make segment %s: %w", path, err), f.Close(), p.fs.Remove(path))
	}
	return g, nil
}

// adopt adds a segment to the tables. p.mu is held.
func (p *space) adopt(g *segment) {
	c := p.classOf(g.SlotBytes)
	g.class = c
	c.segments = append(c.segments, g)
	c.slots += int64(g.Slots)
	p.segments[g.ID] = g
	p.setRefs(g, g)
}

// addPending notes slots whose deletion is committed but not yet durable.
func (p *space) addPending(refs []index.Ref) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		if g := p.at(ref); !g.retired {
			g.class.pending++
			p.pending = append(p.pending, ref)
		}
	}
}

// takePending returns the slots that the barrier about to start will make free.
func (p *space) takePending() []index.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.pending
	p.pending = nil
	return out
}

// release makes slots free, after a barrier, or pending again if ok is false or someone
// still holds them.
func (p *space) release(refs []index.Ref, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		g := p.at(ref)
		switch {
		case g == nil:
		case g.retired:
			g.class.pending--
		case !ok || p.table.Pinned(ref):
			p.pending = append(p.pending, ref)
		default:
			g.class.pending--
			g.class.free = append(g.class.free, ref)
		}
	}
	for _, c := range p.classes {
		if len(c.free) > 0 {
			c.wake()
		}
	}
}

// retire stops a segment from giving out slots. It reports false if it was retired before or
// is being written to: take gives out slots under the same lock, so that no one writes to a
// segment that is retired.
func (p *space) retire(g *segment) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.retired || g.writing.Load() > 0 {
		return false
	}
	g.retired = true
	c := g.class
	mine := func(ref index.Ref) bool { return ref >= g.base && ref < g.base+index.Ref(g.Slots) }
	c.free = slices.DeleteFunc(c.free, mine)
	before := len(p.pending)
	p.pending = slices.DeleteFunc(p.pending, mine)
	c.pending -= int64(before - len(p.pending))
	c.segments = slices.DeleteFunc(c.segments, func(o *segment) bool { return o == g })
	c.slots -= int64(g.Slots)
	return true
}

// remove deletes a retired segment whose records are gone, durably so.
func (p *space) remove(g *segment) error {
	err := errors.Join(p.journal.DeleteSegment(g.ID), g.file.Close(), p.fs.Remove(g.path), p.fs.SyncDir(p.dir))
	p.setRefs(g, nil)
	p.table.DropSlots(g.base, roundRefs(g.Slots))
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.segments, g.ID)
	p.bytes -= g.physical
	p.slots -= int64(g.Slots)
	p.full = false
	for _, c := range p.classes {
		c.wake()
	}
	if err != nil {
		return fmt.Errorf("remove segment %s: %w", g.path, err)
	}
	return nil
}

// sortedSegments returns all segments in the order of their numbers.
func (p *space) sortedSegments() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.segments), func(a, b *segment) int { return cmp.Compare(a.ID, b.ID) })
}

// dirty returns the segments written to since the last call.
func (p *space) takeDirty() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*segment
	for _, g := range p.segments {
		if g.dirty.Swap(false) {
			out = append(out, g)
		}
	}
	return out
}

// retryFull has the next writer that finds no slot try to make a segment again: others may
// have freed space on the filesystem.
func (p *space) retryFull() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = false
}

// over is by how many bytes the store is above its cap.
func (p *space) over() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes + p.reserved(p.slots) - p.maxBytes
}
