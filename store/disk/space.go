package disk

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/report"
)

// spaceOptions are what a space works with.
type spaceOptions struct {
	fs fsio.FS
	// root is the store's directory, dir that of the segments, others those beside it where
	// files may be set aside, journalDir that of the journal.
	root, dir, journalDir string
	others                []string
	// fixed are the names in root of which the sizes are counted elsewhere.
	fixed   map[string]bool
	store   format.StoreID
	table   *index.Table
	journal *journal.Journal
	direct  bool
	report  *report.Report
	// nextID is the number of the next segment to make; awaited are the slots of the segments
	// that the disk does not give, where the journal knows them.
	nextID  uint32
	awaited map[uint32]uint32
}

// newSpace returns a space without segments.
func newSpace(o spaceOptions, l limits) *space {
	return &space{
		spaceOptions: o, limits: l,
		classes: make(map[int64]*class), segments: make(map[uint32]*segment),
		slotFaults: slotFaults{bad: make(map[index.Ref]struct{}), suspects: make(map[index.Ref]suspect)},
	}
}

const (
	segmentPrefix = "seg-"
	segmentSuffix = ".kv"
)

// segmentIDOf returns the number of the segment whose file has that name.
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

// slotBytes is the size of the slot that a payload needs.
func slotBytes(payloadBytes int) int64 {
	return int64(format.HeaderBytes + fsio.AlignUp(payloadBytes))
}

// refAlign is what the first reference of every segment is a multiple of, so that a table
// with one entry for that many slots leads from a reference to its segment.
const refAlign = 64

// segment is an open segment file.
type segment struct {
	format.Segment
	file     fsio.File
	path     string
	base     index.Ref
	physical int64 // bytes set aside for it under the cap
	class    *class
	// made is the index's clock when the segment was made, 0 if it was there at open.
	made uint64
	// dirty is set when a payload was written since the last barrier.
	dirty atomic.Bool
	// writing is the number of slots given out and not committed yet.
	writing atomic.Int64
	// noted is the generation of the journal that surely has the segment; the committer's.
	noted uint64
	// retired segments give out no slots, bad is how many of the slots are set aside;
	// both are guarded by space.mu.
	retired bool
	bad     int
	// withheld segments give out no slots and lose no records to others of their class:
	// unread ones until their headers have been read, frozen ones, whose file cannot be put
	// right, as long as the store is open.
	withheld, unread atomic.Bool
	frozen           bool
}

// slots are the references of the segment's slots.
func (g *segment) slots() index.Range { return index.Range{Base: g.base, Slots: g.Slots} }

// markDirty notes that a payload is being written, or was.
func (g *segment) markDirty() { g.dirty.Store(true) }

// settled notes that a slot which was given out is committed or will not be.
func (g *segment) settled() { g.writing.Add(-1) }

// isUnread reports whether the headers of the segment have not all been read.
func (g *segment) isUnread() bool { return g.unread.Load() }

// location is where a slot is.
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
}

// space keeps the segments, their free slots and the accounting of physical bytes. No
// lock is held while it makes or removes a file.
type space struct {
	spaceOptions
	limits

	mu       sync.Mutex
	classes  map[int64]*class
	segments map[uint32]*segment
	// bytes are the physical bytes of all files in the directory of segments: those in
	// use, those being made or given up, those set aside.
	bytes        int64
	slots        int64
	awaitedSlots int64 // of segments that the disk does not give

	journalB int64 // physical bytes of the journal when last measured
	smallB   int64 // physical bytes of manifests and whatever else lies in the directory
	// unmeasured is for how many measurements more the store does not grow, since not all
	// files could be measured.
	unmeasured int
	// uncounted is set if some file could not be counted at the start. Segments from firstMade on
	// were made since and are counted where they are made.
	uncounted bool
	firstMade uint32

	pending  []index.Ref
	making   makingState
	retiring []*retirement
	aside    []asideFile
	slotFaults

	noSegment report.Incident // a segment could not be made

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

const (
	// extentBytes is what the file system may add to a segment for each slot: while only
	// some of its slots have been written, they are extents of their own.
	extentBytes        = 24
	segmentSlackBytes  = 16 << 10
	minShrunkSegments  = 8 // a last segment may be this fraction of the nominal size
	maxSlotsOfASegment = 1 << 20
)

// plan returns the segment to make next for a class, or false if there is no room.
// p.mu is held.
func (p *space) plan(c *class) (format.Segment, int64, bool) {
	const overhead = segmentSlackBytes + format.HeaderBytes
	each := c.slotBytes + extentBytes
	slots := (min(p.capRoom(), p.freeRoom(c.slots > 0)) - overhead) / (each + reservedOfSlot)
	want := min(max(1, p.nominal/c.slotBytes), maxSlotsOfASegment)
	slots = min(want, slots)
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
	if !c.making && p.mayMake() {
		if _, _, ok := p.plan(c); ok {
			c.making = true
			return index.NoRef, c.freed, true
		}
	}
	return index.NoRef, c.freed, false
}

// grow makes the segment for which take set making, if there still is room for it.
func (p *space) grow(slotBytes int64) (made bool, err error) {
	p.mu.Lock()
	c := p.classOf(slotBytes)
	head, physical, ok := p.plan(c)
	margin := c.slots > 0
	if ok {
		// Counted before it is made, so that no moment sees the cap passed.
		p.bytes += physical
		p.slots += int64(head.Slots)
		p.nextID++
	}
	p.mu.Unlock()
	var g *segment
	if ok {
		if err = p.checkRoom(physical, margin); err == nil {
			g, err = p.create(head, physical)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c.making = false
	c.wake()
	if !ok {
		return false, nil
	}
	if err != nil {
		p.slots -= int64(head.Slots)
		if errors.Is(err, errFileLeft) {
			p.aside = append(p.aside, asideFile{path: p.segmentPath(head.ID), bytes: physical, due: true})
		} else {
			p.bytes -= physical
		}
		p.making.failed(err)
		return false, err
	}
	p.room.FreeBytes -= physical
	p.making = makingState{}
	p.adopt(g)
	// Taken from the end: ascending slots make long extents.
	for i := g.Slots; i > 0; i-- {
		c.free = append(c.free, g.base+index.Ref(i-1))
	}
	return true, nil
}

func (p *space) segmentPath(id uint32) string {
	return filepath.Join(p.dir, fmt.Sprintf("%s%08d%s", segmentPrefix, id, segmentSuffix))
}

// errFileLeft says that a segment could not be made and its file not be removed.
var errFileLeft = errors.New("the file is still there")

// create makes and preallocates a segment file.
func (p *space) create(head format.Segment, physical int64) (*segment, error) {
	path := p.segmentPath(head.ID)
	f, err := p.fs.OpenFile(path, true, p.direct)
	if err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	g := &segment{Segment: head, file: f, path: path, physical: physical, made: p.table.Clock()}
	header := store.AlignedBuffer(format.HeaderBytes)
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
		if g.base, err = p.table.AddSlots(roundRefs(head.Slots)); err != nil {
			err = errors.Join(err, p.journal.DeleteSegment(head.ID))
		}
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("make segment %s: %w", path, err), f.Close())
		if p.fs.Remove(path) != nil {
			err = fmt.Errorf("%w: %w", errFileLeft, err)
		}
		return nil, err
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
	p.track(g)
}

// track tells the index what of a segment may be evicted: nothing while its headers are
// unread, and of one that takes no new records all or nothing, as of a class of its own.
func (p *space) track(g *segment) {
	switch {
	case g.unread.Load():
	case g.frozen:
		p.table.Track(-g.SlotBytes, g.slots(), g.made)
	default:
		p.table.Track(g.SlotBytes, g.slots(), g.made)
	}
}

// idle is the number of slots without a record: free, waiting for a barrier, resting or
// bad. p.mu is held.
func (p *space) idle() int64 {
	n := int64(len(p.bad)) + p.coolingSlots()
	for _, c := range p.classes {
		n += int64(len(c.free)) + c.pending
	}
	return n
}

// allSegments returns all segments in the order of their numbers.
func (p *space) allSegments() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.segments), func(a, b *segment) int { return cmp.Compare(a.ID, b.ID) })
}

// inUse returns the segments that are not being given up.
func (p *space) inUse() (out []*segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.classes {
		out = append(out, c.segments...)
	}
	return out
}

// byID returns all segments by their numbers.
func (p *space) byID() map[uint32]*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.segments)
}

// closeFiles closes the files of all segments.
func (p *space) closeFiles() (err error) {
	for _, g := range p.segments {
		err = errors.Join(err, g.file.Close())
	}
	return err
}

// refOf is the reference of a slot, or none if its segment is not there.
func (p *space) refOf(at journal.Location) index.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.segments[at.Segment]
	if at == journal.NoLocation || g == nil || at.Slot >= g.Slots {
		return index.NoRef
	}
	return g.base + index.Ref(at.Slot)
}
