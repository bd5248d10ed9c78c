package disk

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
)

// foundSegment is a segment file that was there when the store opened. Its geometry is settled.
type foundSegment struct {
	format.Segment
	file fsio.File
	path string
	// unread is set if the records must be read from their headers, frozen if the segment takes
	// no new ones.
	unread, frozen bool
}

// newSegment makes a segment of a file whose geometry is settled.
func newSegment(f foundSegment, base index.Ref) *segment {
	size, err := f.file.PhysicalBytes()
	if err != nil {
		size = 0 // at least what it should have
	}
	g := &segment{Segment: f.Segment, file: f.file, path: f.path, base: base}
	g.physical = max(size, f.FileBytes()) + segmentSlackBytes
	g.unread.Store(f.unread)
	g.withheld.Store(f.unread || f.frozen)
	g.frozen = f.frozen
	return g
}

// takeIn adds a segment that was found on the disk. Its file may have been counted among those set
// aside.
func (p *space) takeIn(g *segment) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropAside(g.path)
	p.bytes += g.physical
	p.slots += int64(g.Slots)
	p.adopt(g)
}

// surveyors is how many segments are surveyed at one time.
const surveyors = 4

// listFreeSlots fills the lists of free slots from the index, which learns meanwhile what
// there is to evict.
func (p *space) listFreeSlots() {
	var wg sync.WaitGroup
	segments := make(chan *segment)
	for range surveyors {
		wg.Go(func() {
			for g := range segments {
				free := p.table.Survey(g.slots(), nil)
				if g.withheld.Load() {
					continue
				}
				p.mu.Lock()
				g.class.free = append(g.class.free, free...)
				p.mu.Unlock()
			}
		})
	}
	for _, g := range p.segments {
		if !g.unread.Load() {
			segments <- g
		}
	}
	close(segments)
	wg.Wait()
}

// checkAccounting reports an error if the slots of the segments are not all accounted for.
// Nothing may be written meanwhile.
func (p *space) checkAccounting() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	slots, free := int64(0), p.idle()
	if err := p.checkLists(); err != nil {
		return err
	}
	for _, g := range p.segments {
		slots += int64(g.Slots)
		if g.withheld.Load() {
			free += int64(len(p.table.Survey(g.slots(), nil)) - g.bad)
		}
	}
	if n := int64(p.table.Len()); slots != p.slots || n+free != slots {
		return fmt.Errorf("%d slots, %d accounted for; %d records and %d without", slots, p.slots, n, free)
	}
	return nil
}

// checkLists reports an error if a slot is listed as free or pending twice, or though it is bad
// or its segment takes no records. p.mu is held.
func (p *space) checkLists() error {
	lists := [][]index.Ref{p.pending}
	for _, c := range p.classes {
		lists = append(lists, c.free)
	}
	seen := make(map[index.Ref]bool)
	for _, ref := range slices.Concat(lists...) {
		g := p.at(ref)
		if seen[ref] || g == nil || g.frozen || g.unread.Load() || p.isBad(ref) {
			return fmt.Errorf("slot %d is listed twice, or cannot be written to", ref)
		}
		seen[ref] = true
	}
	return nil
}
