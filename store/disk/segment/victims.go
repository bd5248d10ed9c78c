package segment

import (
	"github.com/kvconn/kvconn/store/disk/index"
)

// chooseVictims has the index choose the next records of a class to evict. If another class
// has a segment whose records are colder, or this class has nothing to evict, that segment is
// given up instead and the result is true.
func (rc *Reclaimer) chooseVictims(c *class) (tookSegment bool) {
	limit := ^uint64(0)
	if first, ok := rc.Space.o.Table.Choose(c.slotBytes); ok {
		limit = first.Tick()
	}
	g := rc.colderSegment(c, limit)
	if g == nil || !rc.giveUp(g, c) {
		return false
	}
	rc.Space.o.Table.Forget(c.slotBytes) // there may be another such segment when room is needed again
	return true
}

// colderSegment returns the coldest segment of the other classes (of all if c is nil) that is
// in use by no one, if its records were on average used before a tick.
func (rc *Reclaimer) colderSegment(c *class, before uint64) *Segment {
	but := int64(0)
	if c != nil {
		but = c.slotBytes
	}
	r, ok := rc.Space.o.Table.ColdestRange(but, before, func(r index.Range) bool {
		g := rc.Space.At(r.Base)
		return g != nil && g.writing.Load() == 0 && !rc.Space.holds(g)
	})
	if !ok {
		return nil
	}
	return rc.Space.At(r.Base) // nil if someone else gave it up meanwhile
}

// holds reports whether a record of a segment is pinned. The index looks at a sample: a segment that
// keeps its place for one record has lost all others for nothing.
func (p *Space) holds(g *Segment) bool {
	for ref := g.Base; ref < g.Base+index.Ref(g.Slots); ref++ {
		if p.o.Table.Pinned(ref) {
			return true
		}
	}
	return false
}
