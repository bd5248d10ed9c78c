package segment

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/report"
	"github.com/kvconn/kvconn/store/record"
)

// Options are what a space works with.
type Options struct {
	FS fsio.FS
	// Root is the store's directory, Dir that of the segments, JournalDir that of the journal.
	// Others are the names in Root of directories where files may be set aside.
	Root, Dir, JournalDir string
	Others                []string
	// Fixed are the names in Root whose sizes are counted elsewhere.
	Fixed   map[string]bool
	Store   record.StoreID
	Table   *index.Table
	Journal *journal.Journal
	Direct  bool
	Report  *report.Report
	// NextID is the number of the first segment to make; Awaited are the slots of the segments
	// that the disk does not give, where the journal knows them.
	NextID  uint32
	Awaited map[uint32]uint32
}

// New returns a space without segments.
func New(o Options, l Limits) *Space {
	return &Space{
		o: o, limits: l, nextID: o.NextID,
		classes: make(map[int64]*class), segments: make(map[uint32]*Segment),
		slotFaults: slotFaults{bad: make(map[index.Ref]struct{}), suspects: make(map[index.Ref]suspect)},
	}
}

// class is all that has to do with slots of one size.
type class struct {
	slotBytes int64
	segments  []*Segment
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

// Space keeps the segments, their free slots and the accounting of physical bytes. No
// lock is held while it makes or removes a file.
type Space struct {
	o      Options
	limits Limits

	mu       sync.Mutex
	nextID   uint32
	classes  map[int64]*class
	segments map[uint32]*Segment
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
	byRef []*Segment
}

// At returns the segment of a slot.
func (p *Space) At(ref index.Ref) *Segment {
	p.refMu.RLock()
	defer p.refMu.RUnlock()
	if int(ref/RefAlign) >= len(p.byRef) {
		return nil
	}
	return p.byRef[ref/RefAlign]
}

func (p *Space) setRefs(g *Segment, value *Segment) {
	p.refMu.Lock()
	defer p.refMu.Unlock()
	first, last := int(g.Base/RefAlign), int((g.Base+index.Ref(g.Slots)-1)/RefAlign)
	for len(p.byRef) <= last {
		p.byRef = append(p.byRef, nil)
	}
	for i := first; i <= last; i++ {
		p.byRef[i] = value
	}
}

// classOf returns the class of a slot size. p.mu is held.
func (p *Space) classOf(slotBytes int64) *class {
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
func (p *Space) plan(c *class) (format.Segment, int64, bool) {
	const overhead = segmentSlackBytes + record.HeaderBytes
	each := c.slotBytes + extentBytes
	slots := (min(p.capRoom(), p.freeRoom(c.slots > 0)) - overhead) / (each + reservedOfSlot)
	want := min(max(1, p.limits.nominal/c.slotBytes), maxSlotsOfASegment)
	slots = min(want, slots)
	if slots < 1 || slots < want/minShrunkSegments && c.slots > 0 {
		return format.Segment{}, 0, false
	}
	s := format.Segment{Store: p.o.Store, ID: p.nextID, Slots: uint32(slots), SlotBytes: c.slotBytes}
	return s, s.FileBytes() + slots*extentBytes + segmentSlackBytes, true
}

// take returns a free slot, or the channel that is closed when there may be one. grow says
// that the caller should make a segment first.
func (p *Space) take(slotBytes int64) (ref index.Ref, freed <-chan struct{}, grow bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.classOf(slotBytes)
	if n := len(c.free); n > 0 {
		ref = c.free[n-1]
		c.free = c.free[:n-1]
		p.At(ref).writing.Add(1)
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
func (p *Space) grow(slotBytes int64) (made bool, err error) {
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
	var g *Segment
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
	p.limits.room.FreeBytes -= physical
	p.making = makingState{}
	p.adopt(g)
	// Taken from the end: ascending slots make long extents.
	for i := g.Slots; i > 0; i-- {
		c.free = append(c.free, g.Base+index.Ref(i-1))
	}
	return true, nil
}

func (p *Space) segmentPath(id uint32) string {
	return filepath.Join(p.o.Dir, fmt.Sprintf("%s%08d%s", Prefix, id, Suffix))
}

// errFileLeft says that a segment could not be made and its file not be removed.
var errFileLeft = errors.New("the file is still there")

// create makes and preallocates a segment file.
func (p *Space) create(head format.Segment, physical int64) (*Segment, error) {
	path := p.segmentPath(head.ID)
	f, err := p.o.FS.OpenFile(path, true, p.o.Direct)
	if err != nil {
		return nil, fmt.Errorf("make segment: %w", err)
	}
	g := &Segment{Segment: head, File: f, Path: path, physical: physical, made: p.o.Table.Clock()}
	header := store.AlignedBuffer(record.HeaderBytes)
	head.Encode(header)
	err = f.Allocate(head.FileBytes())
	if err == nil {
		err = f.WriteVec(header, nil, 0)
	}
	if err == nil {
		err = f.Datasync()
	}
	if err == nil {
		err = p.o.FS.SyncDir(p.o.Dir)
	}
	if err == nil {
		err = p.o.Journal.PutSegment(journal.Segment{ID: head.ID, Slots: head.Slots, SlotBytes: head.SlotBytes})
	}
	if err == nil {
		if g.Base, err = p.o.Table.AddSlots(RoundRefs(head.Slots)); err != nil {
			err = errors.Join(err, p.o.Journal.DeleteSegment(head.ID))
		}
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("make segment %s: %w", path, err), f.Close())
		if p.o.FS.Remove(path) != nil {
			err = fmt.Errorf("%w: %w", errFileLeft, err)
		}
		return nil, err
	}
	return g, nil
}

// adopt adds a segment to the tables. p.mu is held.
func (p *Space) adopt(g *Segment) {
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
func (p *Space) track(g *Segment) {
	switch {
	case g.unread.Load():
	case g.Frozen:
		p.o.Table.Track(-g.SlotBytes, g.Range(), g.made)
	default:
		p.o.Table.Track(g.SlotBytes, g.Range(), g.made)
	}
}

// idle is the number of slots without a record: free, waiting for a barrier, resting or
// bad. p.mu is held.
func (p *Space) idle() int64 {
	n := int64(len(p.bad)) + p.coolingSlots()
	for _, c := range p.classes {
		n += int64(len(c.free)) + c.pending
	}
	return n
}

// AllSegments returns all segments in the order of their numbers.
func (p *Space) AllSegments() []*Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.segments), func(a, b *Segment) int { return cmp.Compare(a.ID, b.ID) })
}

// Unread returns the segments whose headers have not all been read.
func (p *Space) Unread() []*Segment {
	return slices.DeleteFunc(p.AllSegments(), func(g *Segment) bool { return !g.IsUnread() })
}

// LocationOf is where a slot is for the journal, or nowhere if its segment is gone.
func (p *Space) LocationOf(ref index.Ref) journal.Location {
	if ref == index.NoRef {
		return journal.NoLocation
	}
	g := p.At(ref)
	if g == nil {
		return journal.NoLocation
	}
	return g.Location(ref)
}

// InUse returns the segments that are not being given up.
func (p *Space) InUse() (out []*Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.classes {
		out = append(out, c.segments...)
	}
	return out
}

// ByID returns all segments by their numbers.
func (p *Space) ByID() map[uint32]*Segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.segments)
}

// CloseFiles closes the files of all segments.
func (p *Space) CloseFiles() (err error) {
	for _, g := range p.segments {
		err = errors.Join(err, g.File.Close())
	}
	return err
}

// RefOf is the reference of a slot, or none if its segment is not there.
func (p *Space) RefOf(at journal.Location) index.Ref {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.segments[at.Segment]
	if at == journal.NoLocation || g == nil || at.Slot >= g.Slots {
		return index.NoRef
	}
	return g.Base + index.Ref(at.Slot)
}
