package segment

import (
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"golang.org/x/sync/errgroup"
)

// Found is a segment file that was there when the store opened. Its geometry is settled.
type Found struct {
	format.Segment
	File fsio.File
	Path string
	// Unread is set if the records must be read from their headers, Frozen if the segment takes
	// no new ones.
	Unread, Frozen bool
}

// Open makes a segment of a file whose geometry is settled.
func Open(f Found, base index.Ref) *Segment {
	size, err := f.File.PhysicalBytes()
	if err != nil {
		size = 0 // at least what it should have
	}
	g := &Segment{Segment: f.Segment, File: f.File, Path: f.Path, Base: base}
	g.physical = max(size, f.FileBytes()) + segmentSlackBytes
	g.unread.Store(f.Unread)
	g.withheld.Store(f.Unread || f.Frozen)
	g.Frozen = f.Frozen
	return g
}

// TakeIn adds a segment that was found on the disk. Its file may have been counted among those set
// aside.
func (p *Space) TakeIn(g *Segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAside(g.Path)
	p.bytes += g.physical
	p.slots += int64(g.Slots)
	p.adopt(g)
}

// surveyors is how many segments are surveyed at one time.
const surveyors = 4

// ListFreeSlots fills the lists of free slots from the index, which learns meanwhile what
// there is to evict.
func (p *Space) ListFreeSlots() {
	var surveying errgroup.Group
	surveying.SetLimit(surveyors)
	for _, g := range p.AllSegments() {
		if g.unread.Load() {
			continue
		}
		surveying.Go(func() error {
			if free := p.o.Table.Survey(g.Range(), nil); !g.withheld.Load() {
				p.mu.Lock()
				g.class.free = append(g.class.free, free...)
				p.mu.Unlock()
			}
			return nil
		})
	}
	_ = surveying.Wait()
}

// CheckAccounting reports an error if the slots of the segments are not all accounted for.
// Nothing may be written meanwhile.
func (p *Space) CheckAccounting() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slots, free := int64(0), p.idle()
	if err := p.checkLists(); err != nil {
		return err
	}
	for _, g := range p.segments {
		slots += int64(g.Slots)
		if g.withheld.Load() {
			free += int64(len(p.o.Table.Survey(g.Range(), nil)) - g.bad)
		}
	}
	if n := int64(p.o.Table.Len()); slots != p.slots || n+free != slots {
		return fmt.Errorf("%d slots, %d accounted for; %d records and %d without", slots, p.slots, n, free)
	}
	return nil
}

// checkLists reports an error if a slot is listed as free or pending twice, or though it is bad
// or its segment takes no records. p.mu is held.
func (p *Space) checkLists() error {
	lists := [][]index.Ref{p.pending}
	for _, c := range p.classes {
		lists = append(lists, c.free)
	}
	seen := make(map[index.Ref]bool)
	for _, ref := range slices.Concat(lists...) {
		g := p.At(ref)
		if seen[ref] || g == nil || g.Frozen || g.unread.Load() || p.isBad(ref) {
			return fmt.Errorf("slot %d is listed twice, or cannot be written to", ref)
		}
		seen[ref] = true
	}
	return nil
}
