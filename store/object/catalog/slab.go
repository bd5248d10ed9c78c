package catalog

import (
	"slices"
	"unsafe"

	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/offheap"
)

const (
	slabShift = 17
	slabUnits = 1 << slabShift
	slabMask  = slabUnits - 1
	slabBytes = slabUnits * unitBytes // 2.5 MiB
	// maxSlabs keeps references below hashtable.NoRef.
	maxSlabs = 1<<(32-slabShift) - 1
)

// slab has objects one after the other. They are only appended; what is out of use stays until the rest of
// its slab moves elsewhere.
type slab struct {
	memory []byte // nil: not in use
	filled int    // units
	dead   int    // of these
	// retry is when to try again to empty it.
	retry format.Seconds
}

func (c *Catalog) unit(r ref) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(unsafe.SliceData(c.slabs[r>>slabShift].memory)), uintptr(r&slabMask)*unitBytes)
}

func (c *Catalog) row(r ref) *row       { return (*row)(c.unit(r)) }
func (c *Catalog) record(r ref) *record { return (*record)(c.unit(r)) }

// records are the units of an object's records, runs those of its runs.
func (c *Catalog) records(at ref, o *row) []record {
	return unsafe.Slice((*record)(c.unit(at+rowUnits)), o.records)
}

func (c *Catalog) runs(at ref, o *row) []run {
	return unsafe.Slice((*run)(c.unit(at+rowUnits+ref(o.records))), o.runs)
}

// rowOf is the row of a record's object.
func (c *Catalog) rowOf(at ref) ref { return at - ref(c.record(at).ordinal()) - rowUnits }

// allocate returns units at the end of a slab, which nothing refers to yet. It reports false if there are no
// references left. Look-ups may go on: what is in slabs already does not move.
func (c *Catalog) allocate(units int) (ref, bool) {
	if c.head < 0 || c.slabs[c.head].filled+units > slabUnits {
		if !c.addSlab() {
			return hashtable.NoRef, false
		}
	}
	s := &c.slabs[c.head]
	at := ref(c.head<<slabShift + s.filled)
	s.filled += units
	c.filled += units
	return at, true
}

// addSlab begins another slab.
func (c *Catalog) addSlab() bool {
	at := slices.IndexFunc(c.slabs, func(s slab) bool { return s.memory == nil })
	if at < 0 && len(c.slabs) == maxSlabs {
		return false
	}
	memory, err := offheap.Map(slabBytes)
	if err != nil {
		panic("catalog: cannot map memory: " + err.Error()) // as with memory of Go's heap
	}
	_ = offheap.Populate(memory[:slabBytes]) // or it is given when it is written to
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.head >= 0 { // its end stays empty
		s := &c.slabs[c.head]
		rest := slabUnits - s.filled
		s.dead, c.dead, c.filled = s.dead+rest, c.dead+rest, c.filled+rest
	}
	if at < 0 {
		at = len(c.slabs)
		c.slabs = append(c.slabs, slab{})
	}
	c.slabs[at] = slab{memory: memory}
	c.head = at
	return true
}

// waste counts units that are of no use any more.
func (c *Catalog) waste(at ref, units int) {
	c.slabs[at>>slabShift].dead += units
	c.dead += units
}

// eachIn calls f for the objects of a slab, which may be out of use.
func (c *Catalog) eachIn(s int, f func(at ref, o *row)) {
	for i := 0; i < c.slabs[s].filled; {
		at := ref(s<<slabShift + i)
		o := c.row(at)
		units := o.units()
		f(at, o)
		i += units
	}
}

// each calls f for all objects that are in use.
func (c *Catalog) each(f func(at ref, o *row)) {
	for s := range c.slabs {
		c.eachIn(s, func(at ref, o *row) {
			if !o.is(isDead) {
				f(at, o)
			}
		})
	}
}

// wasteShift: slabs are emptied while more than 1/8 of them is waste.
const wasteShift = 3

// retrySeconds pass before a slab is tried again where something was pinned.
const retrySeconds = 60

// compact moves the objects of slabs that have the most waste, and gives these slabs back.
func (c *Catalog) compact() {
	if c.dead <= slabUnits {
		return
	}
	now := c.o.Now()
	for c.holds.Load() == 0 && c.dead > c.filled>>wasteShift && c.dead > slabUnits {
		worst, most := -1, slabUnits>>(wasteShift+1)
		for i := range c.slabs {
			if s := &c.slabs[i]; i != c.head && s.dead > most && now >= s.retry {
				worst, most = i, s.dead
			}
		}
		if worst < 0 {
			return
		}
		c.evacuate(worst, now)
	}
}

// evacuate moves the objects of a slab to the last one, and gives its memory back, unless somebody pins one
// of them.
func (c *Catalog) evacuate(s int, now format.Seconds) {
	all := true
	c.eachIn(s, func(at ref, o *row) {
		if !o.is(isDead) && !c.moveObject(at, o) {
			all = false
		}
	})
	if !all {
		c.slabs[s].retry = now + retrySeconds
		return
	}
	c.mu.Lock()
	gone := c.slabs[s]
	c.slabs[s] = slab{}
	c.filled, c.dead = c.filled-slabUnits, c.dead-gone.dead
	c.mu.Unlock()
	_ = offheap.Unmap(gone.memory)
}

// moveObject moves what is of use of an object, unless it is pinned.
func (c *Catalog) moveObject(from ref, o *row) bool {
	if o.pinned() {
		return false
	}
	units := o.liveUnits()
	to, ok := c.allocate(units)
	if !ok {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	dst := unsafe.Slice((*byte)(c.unit(to)), units*unitBytes)
	copy(dst, unsafe.Slice((*byte)(c.unit(from)), units*unitBytes))
	moved := c.row(to)
	if units == rowUnits {
		moved.flags |= isBare
	}
	if o.pinned() { // by now
		moved.flags |= isDead
		c.waste(to, units)
		return false
	}
	c.hash.replace(c.objectHash(&o.id), from, to)
	if units > rowUnits {
		class := c.groups[o.group].class
		for i := range c.records(from, o) {
			if r := c.record(from + rowUnits + ref(i)); r.at&isLoose == 0 {
				c.hash.replace(class.hash(&r.key), from+rowUnits+ref(i), to+rowUnits+ref(i))
			}
		}
	}
	c.waste(from, units)
	o.flags |= isDead
	return true
}
