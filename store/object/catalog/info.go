package catalog

import "github.com/kvconn/kvconn/store/object/format"

// State is what is known of an object.
type State uint8

// The states.
const (
	// StatePresent objects are offered, if their records are in memory.
	StatePresent State = iota
	// StateLost objects were missing or damaged when this node read them: nothing in them is found any more.
	StateLost
	// StateLeaving objects were removed: they are not offered, and still read.
	StateLeaving
)

// Info describes an object.
type Info struct {
	ID    format.ObjectID
	State State
	Cause format.Cause // of objects that are lost or leaving
	// Records and Bytes are 0 while only the removal of an object is known.
	Records int
	Bytes   int64          // of the whole object
	Used    format.Seconds // when it was last used; of those that are leaving when they were removed
	// Offered is set if its records are found.
	Offered bool
}

func (o *row) info() Info {
	i := Info{
		ID: o.id, Cause: format.Cause(o.flags & causeMask), Records: int(o.records), Bytes: int64(o.bytes),
		Used: format.Seconds(o.lastUse()), Offered: o.offered(),
	}
	switch {
	case o.is(isLeaving):
		i.State = StateLeaving
	case o.is(isLost):
		i.State = StateLost
	}
	return i
}

// Object describes an object. It reports false if nothing is known of it, or its bytes are gone.
func (c *Catalog) Object(id format.ObjectID) (info Info, known bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return Info{}, false
	}
	if _, o := c.object(&id); o != nil && !o.is(isGone) {
		return o.info(), true
	}
	return Info{}, false
}

// Objects calls f for the objects that are known, until it returns false. An object that comes meanwhile may be
// left out. f may use the catalog.
func (c *Catalog) Objects(f func(Info) bool) {
	c.holds.Add(1)
	defer c.holds.Add(-1)
	var slabs int
	var generation uint64
	c.change(func() { slabs, generation = len(c.slabs), c.generation })
	var all []Info
	for s := range slabs {
		all = all[:0]
		c.change(func() {
			if c.generation == generation {
				all = c.objectsIn(s, all)
			}
		})
		for _, i := range all {
			if !f(i) {
				return
			}
		}
	}
}

// objectsIn appends the objects of a slab.
func (c *Catalog) objectsIn(s int, all []Info) []Info {
	if c.slabs[s].memory == nil {
		return all
	}
	c.eachIn(s, func(_ ref, o *row) {
		if !o.is(isGone | isDead) {
			all = append(all, o.info())
		}
	})
	return all
}
