package catalog

import (
	"slices"
	"sync/atomic"

	"github.com/kvconn/kvconn/store/eventlog"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

// goneSeconds is for how long it is known that an object was deleted: lists that still have it go an hour
// after they were merged.
const goneSeconds = 2 * 3600

// goneObject is an object that was deleted.
type goneObject struct {
	id   format.ObjectID
	when uint32 // this was heard of
}

// tombstone notes an object that only its removal is known of.
func (c *Catalog) tombstone(id *format.ObjectID) (ref, *row) {
	delete(c.early, *id)
	at, ok := c.allocate(rowUnits)
	if !ok {
		return at, nil
	}
	o := c.row(at)
	*o = row{id: *id, flags: isRow | isBare | isOut | isLeaving}
	c.ready(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hash.put(c.objectHash(id), at)
	c.tally(o, 1)
	return at, o
}

// remove takes an object out of what is offered: its bytes will go.
func (c *Catalog) remove(r *format.Removal) {
	at, o := c.object(&r.Object)
	if o == nil {
		if at, o = c.tombstone(&r.Object); o == nil {
			return
		}
		c.leaving = append(c.leaving, o.id)
	}
	if o.is(isGone) {
		return
	}
	offered, leaving := o.offered(), o.is(isLeaving)
	c.mu.Lock()
	c.tally(o, -1)
	when := uint32(r.When)
	if leaving {
		when = max(when, o.lastUse())
	}
	atomic.StoreUint32(&o.used, when)
	o.flags = o.flags&^causeMask | isLeaving | uint16(r.Cause)
	c.tally(o, 1)
	c.mu.Unlock()
	if !leaving {
		c.leaving = append(c.leaving, o.id)
	}
	if offered {
		c.tellRemoved(at, o)
	}
}

// Lost says that an object is not there, or damaged. Nothing in it is found from now on. It reports false if
// nothing in it was offered.
func (c *Catalog) Lost(id format.ObjectID, why format.Cause) (lost bool) {
	c.change(func() {
		at, o := c.object(&id)
		if o == nil || o.is(isLost|isGone) {
			return
		}
		lost = o.offered()
		c.mu.Lock()
		c.tally(o, -1)
		o.flags |= isLost
		if !o.is(isLeaving) {
			o.flags = o.flags&^causeMask | uint16(why)
		}
		c.sums.LostObjects++
		c.tally(o, 1)
		c.mu.Unlock()
		if lost {
			c.tellRemoved(at, o)
		}
	})
	return lost
}

// Forgive takes [Catalog.Lost] back. It reports whether the object is offered again.
func (c *Catalog) Forgive(id format.ObjectID) (offered bool) {
	c.change(func() {
		at, o := c.object(&id)
		if o == nil || !o.is(isLost) || o.is(isGone) {
			return
		}
		if offered = o.flags&notOffered == isLost; offered {
			c.tellAgain(at, o)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.tally(o, -1)
		o.flags &^= isLost
		if !o.is(isLeaving) {
			o.flags &^= causeMask
		}
		c.tally(o, 1)
	})
	return offered
}

// tellAgain makes events of the records of an object that is about to be offered again, where nobody else offers them.
func (c *Catalog) tellAgain(at ref, o *row) {
	k := c.groups[o.group].class
	from := parents{records: c.records(at, o), runs: c.runs(at, o)}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range from.records {
		if i > 0 && i%holdEntries == 0 { // look-ups go on
			c.mu.Unlock()
			c.mu.Lock()
		}
		parent := from.of(i)
		r := c.record(at + rowUnits + ref(i))
		if r.at&isLoose != 0 {
			continue
		}
		if _, known, _ := c.findTwins(k, at+rowUnits+ref(i), at); !known {
			c.events = append(c.events, eventlog.Stored(k.namespace.number, k.shard, r.key, parent))
		}
	}
}

// deleted takes in that the bytes of an object are gone. That is remembered for a while, in case a list
// comes that has the object still.
func (c *Catalog) deleted(id *format.ObjectID) {
	at, o := c.object(id)
	if o == nil {
		if at, o = c.tombstone(id); o == nil {
			return
		}
	}
	if o.is(isGone) {
		return
	}
	offered := o.offered()
	c.mu.Lock()
	c.tally(o, -1)
	o.flags |= isGone
	c.mu.Unlock()
	if offered {
		c.tellRemoved(at, o)
	}
	c.drop(at, o)
	c.gone = append(c.gone, goneObject{*id, uint32(c.o.Now())})
}

// drop takes the records of an object out of the hash table.
func (c *Catalog) drop(at ref, o *row) {
	if o.is(isOut) {
		return
	}
	c.mu.Lock()
	c.tally(o, -1)
	o.flags |= isOut
	c.tally(o, 1)
	c.mu.Unlock()
	k := c.groups[o.group].class
	for from := 0; from < int(o.records); from += holdEntries {
		c.mu.Lock()
		for i := from; i < min(from+holdEntries, int(o.records)); i++ {
			if r := c.record(at + rowUnits + ref(i)); r.at&isLoose == 0 {
				c.hash.cut(k.hash(&r.key), at+rowUnits+ref(i))
			}
		}
		c.mu.Unlock()
	}
	c.waste(at, o.content())
}

// tellRemoved makes events of an object's records that nobody else offers.
func (c *Catalog) tellRemoved(at ref, o *row) {
	k := c.groups[o.group].class
	for i := range c.records(at, o) {
		r := c.record(at + rowUnits + ref(i))
		if r.at&isLoose != 0 || r.at&isTwin != 0 && (c.offer(k, &r.key) != hashtable.NoRef || c.inSiblings(k, &r.key)) {
			continue
		}
		if c.events = append(c.events, eventlog.Removed(k.namespace.number, k.shard, r.key)); len(c.events) >= holdEntries {
			c.publish()
		}
	}
}

// tidyLeaving is how long the list of leaving objects is before it is gone over: nodes that are no steward
// never ask for it.
const tidyLeaving = 1000

// tidy forgets objects that were deleted long ago.
func (c *Catalog) tidy() {
	if len(c.leaving) > tidyLeaving+2*int(c.sums.LeavingObjects) {
		c.leaving = slices.DeleteFunc(c.leaving, func(id format.ObjectID) bool {
			_, o := c.object(&id)
			return o == nil || o.is(isGone)
		})
	}
	now := uint32(c.o.Now())
	n := 0
	for n < len(c.gone) && c.gone[n].when+goneSeconds <= now && c.forget(&c.gone[n].id) {
		n++
	}
	if n > 0 {
		c.gone = append(c.gone[:0], c.gone[n:]...)
	}
}

// forget takes a deleted object out of the hash table. It reports false while it is pinned.
func (c *Catalog) forget(id *format.ObjectID) bool {
	at, o := c.object(id)
	if o == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.pinned() {
		return false
	}
	c.hash.cut(c.objectHash(id), at)
	c.waste(at, rowUnits)
	o.flags |= isDead
	return true
}
