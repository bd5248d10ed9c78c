package catalog

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/store/object/format"
)

// hourSeconds: of two objects that were used in one hour neither is colder.
const hourSeconds = 3600

// candidate is an object that may go.
type candidate struct {
	id    format.ObjectID
	used  uint32
	depth uint16
	bytes uint32
}

// colder puts what goes first at the front: the least recently used, and of those used in the same hour the deeper
// ones in their chains.
func (x *candidate) colder(y *candidate) int {
	return cmp.Or(
		cmp.Compare(x.used/hourSeconds, y.used/hourSeconds),
		cmp.Compare(y.depth, x.depth),
		cmp.Compare(x.used, y.used),
		slices.Compare(x.id[:], y.id[:]),
	)
}

// removable calls f for the objects that could be removed.
func (c *Catalog) removable(f func(o *row)) {
	c.each(func(_ ref, o *row) {
		if o.is(isKnown) && !o.is(isLeaving|isGone) && !o.pinned() {
			f(o)
		}
	})
}

// Coldest returns objects to be removed so that this many bytes go, the coldest first: those used least
// recently, and of those used in one hour those deeper in their chains. What a lease of this node pins is
// left out.
func (c *Catalog) Coldest(bytes int64) []format.ObjectID {
	var chosen []candidate
	c.change(func() {
		hours := make(map[uint32]int64)
		c.removable(func(o *row) { hours[o.lastUse()/hourSeconds] += int64(o.bytes) })
		last := lastHour(hours, bytes)
		chosen = c.candidates(func(o *row) bool { return o.lastUse()/hourSeconds <= last })
	})
	n := 0
	for ; n < len(chosen) && bytes > 0; n++ {
		bytes -= int64(chosen[n].bytes)
	}
	return ids(chosen[:n])
}

// lastHour is the hour at which enough bytes are found: that many were last used in it or before.
func lastHour(hours map[uint32]int64, enough int64) (last uint32) {
	all := make([]uint32, 0, len(hours))
	for h := range hours {
		all = append(all, h)
	}
	slices.Sort(all)
	for _, h := range all {
		if enough <= 0 {
			break
		}
		last = h
		enough -= hours[h]
	}
	return last
}

// candidates are the removable objects that f chooses, the coldest first.
func (c *Catalog) candidates(f func(o *row) bool) (all []candidate) {
	c.removable(func(o *row) {
		if f(o) {
			all = append(all, candidate{o.id, o.lastUse(), o.depth, o.bytes})
		}
	})
	slices.SortFunc(all, func(x, y candidate) int { return x.colder(&y) })
	return all
}

func ids(of []candidate) []format.ObjectID {
	all := make([]format.ObjectID, len(of))
	for i := range of {
		all[i] = of[i].id
	}
	return all
}

// Unused returns the objects that were last used before a time, the coldest first. What a lease of this node
// pins is left out.
func (c *Catalog) Unused(before format.Seconds) (unused []format.ObjectID) {
	c.change(func() {
		unused = ids(c.candidates(func(o *row) bool { return o.lastUse() < uint32(before) }))
	})
	return unused
}

// Removed returns the objects that were removed before a time and are not known to be deleted. What a lease
// of this node pins is left out.
func (c *Catalog) Removed(before format.Seconds) (removed []format.ObjectID) {
	c.change(func() {
		c.leaving = slices.DeleteFunc(c.leaving, func(id format.ObjectID) bool {
			_, o := c.object(&id)
			if o == nil || o.is(isGone) {
				return true
			}
			if o.lastUse() < uint32(before) && !o.pinned() {
				removed = append(removed, id)
			}
			return false
		})
	})
	return removed
}

const (
	// entryBytes is the most that the hash table takes for a reference, once it has grown.
	entryBytes = 8
	// spareBytes is what memory may be in use beside: slabs that are not full, and the growth of the hash table.
	spareBytes = 2*slabBytes + 2*populateBytes
	// dropShift: an eighth of what is bounded is left out at one time.
	dropShift = 3
	// fewRefusals objects are left out before all are gone over again, if that was no use.
	fewRefusals = 10_000
)

// forgetFloor has cold objects come in again where memory is not short any more.
func (c *Catalog) forgetFloor() {
	if int64(c.filled-c.dead)*unitBytes < (c.o.IndexBytes-spareBytes)/4 {
		c.floor = 0
	}
}

// makeRoom reports whether the records of an object fit the bound of memory. To make them fit it leaves out those
// of colder objects.
func (c *Catalog) makeRoom(o *row) bool {
	switch {
	case o.used < c.floor:
		return false
	case c.fits(o):
		return true
	case c.refusals > 0:
		c.refusals--
		return false
	}
	c.leaveOut()
	if o.used < c.floor {
		return false
	}
	if !c.fits(o) { // what there is cannot be left out: it is pinned
		c.refusals = fewRefusals
		return false
	}
	return true
}

func (c *Catalog) fits(o *row) bool {
	live := int64(c.filled-c.dead+rowUnits+o.content()) * unitBytes
	entries := int64(c.hash.count + c.pendingEntries + 1 + int(o.records))
	return live+live/6+entries*entryBytes+spareBytes <= c.o.IndexBytes
}

// leaveOut takes the records of the coldest objects out of memory.
func (c *Catalog) leaveOut() {
	hours := make(map[uint32]int64)
	droppable := func(f func(at ref, o *row)) {
		c.each(func(at ref, o *row) {
			if o.offered() && !o.pinned() {
				f(at, o)
			}
		})
	}
	weight := func(o *row) int64 { return int64(o.content())*unitBytes + int64(o.records)*entryBytes }
	droppable(func(_ ref, o *row) { hours[o.lastUse()/hourSeconds] += weight(o) })
	enough := c.o.IndexBytes >> dropShift
	last := lastHour(hours, enough)
	c.floor = last * hourSeconds
	for _, atLast := range []bool{false, true} {
		droppable(func(at ref, o *row) {
			if hour := o.lastUse() / hourSeconds; enough > 0 && (hour < last || atLast && hour == last) {
				enough -= weight(o)
				c.drop(at, o)
				c.tellRemoved(at, o)
			}
		})
	}
}
