package segment

import (
	"github.com/kvconn/kvconn/store/disk/index"
)

// chooseVictims has the index choose the next records of a class to evict. If another class
// has a segment whose records are colder, or this class has nothing to evict, that segment is
// given up instead and the result is true.
func (rc *Reclaimer) chooseVictims(c *class) (tookSegment bool) {
	limit := ^uint64(0)
	first, ok := rc.Space.o.Table.Choose(c.slotBytes)
	if ok {
		limit = first.Tick()
	}
	g := rc.colderSegment(c, limit, !ok)
	if g == nil || !rc.giveUp(g, c) {
		return false
	}
	rc.Space.o.Table.Forget(c.slotBytes) // there may be another such segment when room is needed again
	return true
}

// colderSegment returns the coldest segment of the other classes (of all if c is nil) that is
// in use by no one, if its records were on average used before a tick. One with records that are to be kept is
// returned only if evenKept is set and there is no other: it is given up rather than that nothing can be saved.
func (rc *Reclaimer) colderSegment(c *class, before uint64, evenKept bool) *Segment {
	g := rc.coldest(c, before, false)
	if g == nil && evenKept && rc.Space.o.Table.Kept().Records > 0 {
		g = rc.coldest(c, before, true)
	}
	return g
}

func (rc *Reclaimer) coldest(c *class, before uint64, evenKept bool) *Segment {
	but := int64(0)
	if c != nil {
		but = c.slotBytes
	}
	r, ok := rc.Space.o.Table.ColdestRange(but, before, evenKept, func(r index.Range) bool {
		g := rc.Space.At(r.Base)
		return g != nil && g.writing.Load() == 0 && !rc.Space.holds(g, evenKept)
	})
	if !ok {
		return nil
	}
	return rc.Space.At(r.Base) // nil if someone else gave it up meanwhile
}

// holds reports whether a record of a segment is pinned, or is to be kept and evenKept is not set. The index looks at a sample: a segment that
// keeps its place for one record has lost all others for nothing.
func (p *Space) holds(g *Segment, evenKept bool) bool {
	t := p.o.Table
	for ref := g.Base; ref < g.Base+index.Ref(g.Slots); ref++ {
		if t.Pinned(ref) || !evenKept && t.Keeps(ref) {
			return true
		}
	}
	return false
}
