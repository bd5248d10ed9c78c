package catalog

import (
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// holdEntries are taken in under one hold of the lock.
	holdEntries = 1000
	// maxTwins of one record are found. More are there if many nodes compute one prompt at one time: the hash
	// table is to be no list of them.
	maxTwins = 4
	// maxEarly uses are kept of objects that are not known yet: parts are applied in any sequence.
	maxEarly = 1 << 16
	// goneSeconds is for how long it is known that an object was deleted: lists that still have it go an hour
	// after they were merged.
	goneSeconds = 2 * 3600
)

// pending is an object whose units are filled, and that nothing refers to yet.
type pending struct {
	at ref
	o  *format.Object
}

// goneObject is an object that was deleted.
type goneObject struct {
	id   format.ObjectID
	when uint32 // this was heard of
}

// Apply takes in what a list says, and returns how many records are offered now that were not, and how many
// no longer. It does not matter in which sequence lists come, nor how often. Reports of readers that found an
// object lost are passed over: the steward looks for itself.
func (c *Catalog) Apply(l *format.List) (added, removed int) {
	count := func(change int) {
		added += max(0, change)
		removed += max(0, -change)
	}
	for objects := l.Objects; len(objects) > 0; {
		n := leading(objects)
		count(c.change(func() { c.add(objects[:n]) }))
		objects = objects[n:]
	}
	inRuns(l.Used, func(run []format.Use) {
		c.change(func() { c.addUses(run) })
	})
	inRuns(l.Removed, func(run []format.Removal) {
		for i := range run {
			count(c.change(func() { c.remove(&run[i]) }))
		}
	})
	inRuns(l.Deleted, func(run []format.ObjectID) {
		for i := range run {
			count(c.change(func() { c.deleted(&run[i]) }))
		}
	})
	c.change(func() {
		c.tidy()
		c.compact()
		c.forgetFloor()
	})
	return added, removed
}

// Reserve says that so many records are about to come: to take them in is quicker then. It does nothing while
// the catalog grows.
func (c *Catalog) Reserve(records int) {
	c.change(func() {
		most := int(c.o.IndexBytes / (unitBytes + entryBytes))
		c.hash.reserve(c.hash.count + min(records, most) + min(records, most)/8) // and objects
	})
}

// leading is how many objects have a thousand records, one at least.
func leading(objects []format.Object) (n int) {
	for entries := 0; n < len(objects) && entries < holdEntries; n++ {
		entries += 1 + len(objects[n].Records)
	}
	return n
}

func inRuns[E any](list []E, f func([]E)) {
	for len(list) > 0 {
		n := min(len(list), holdEntries)
		f(list[:n])
		list = list[n:]
	}
}

// change calls f for whoever changes the catalog, unless it is closed, publishes the events, and returns by how
// many records there are more on offer.
func (c *Catalog) change(f func()) int {
	c.lock()
	defer c.unlock()
	if c.closed {
		return 0
	}
	before := c.sums.Records
	f()
	c.publish()
	return int(c.sums.Records - before)
}

// add takes in objects: first memory is made ready and filled, then all are put into the hash table.
func (c *Catalog) add(objects []format.Object) {
	c.compact()
	for i := range objects {
		o := &objects[i]
		switch at, known := c.object(&o.ID); {
		case known == nil:
			if at, ok := c.fill(o); ok {
				c.pending = append(c.pending, pending{at, o})
				c.pendingEntries += 1 + len(o.Records)
			}
		case known.is(isKnown):
			known.addUse(o.Used)
		default:
			c.identify(at, known, o)
		}
	}
	c.ready(holdEntries)
	h := holder{c: c}
	for _, p := range c.pending {
		h.insert(p)
	}
	h.end()
	c.ready(0)
	clear(c.pending)
	c.pending, c.pendingEntries = c.pending[:0], 0
}

// addUse notes what a list says of an object that is present. Of one that is leaving the time is that of
// its removal.
func (o *row) addUse(when format.Seconds) {
	if !o.is(isLeaving | isGone) {
		o.useAt(uint32(when))
	}
}

// fill writes the units of an object. It reports false if there are no references left.
func (c *Catalog) fill(o *format.Object) (ref, bool) {
	group := c.groupOf(o)
	r := row{
		id: o.ID, group: group, used: uint32(max(o.Used, o.Created)), bytes: o.Bytes,
		records: uint16(len(o.Records)), runs: uint16(len(o.Runs)), depth: leastDepth(o.Runs), flags: isRow | isKnown,
	}
	if when, ok := c.early[o.ID]; ok {
		r.used = max(r.used, when)
		delete(c.early, o.ID)
	}
	if c.unreadable(&r) || !c.makeRoom(&r) {
		r.flags |= isBare | isOut
	}
	at, ok := c.allocate(r.units())
	if !ok {
		return at, false
	}
	*c.row(at) = r
	c.row(at).flags |= isDead // until it is in the hash table
	if r.is(isBare) {
		return at, true
	}
	units := c.records(at, &r)
	for i, x := range o.Records {
		units[i] = record{x.Key, x.Start, uint16(i)}
	}
	runs := c.runs(at, &r)
	for i, x := range o.Runs {
		runs[i] = run{x.Parent, x.First, x.Depth}
	}
	return at, true
}

func leastDepth(runs []format.Run) uint16 {
	depth := runs[0].Depth
	for _, r := range runs[1:] {
		depth = min(depth, r.Depth)
	}
	return depth
}

// unreadable reports whether this program cannot read the records of an object.
func (c *Catalog) unreadable(o *row) bool {
	g := &c.groups[o.group]
	return g.class == nil || !c.o.Readable(g.needs, g.codec)
}

// identify completes what is known of an object of which only the removal was.
func (c *Catalog) identify(at ref, r *row, o *format.Object) {
	group := c.groupOf(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tally(r, -1)
	r.group, r.bytes, r.records, r.runs, r.depth = group, o.Bytes, uint16(len(o.Records)), uint16(len(o.Runs)), leastDepth(o.Runs)
	r.flags |= isKnown
	c.tally(r, 1)
}

// holder puts objects into the hash table, and lets look-ups go on after a thousand entries.
type holder struct {
	c       *Catalog
	holding bool
	entries int
}

func (h *holder) next() {
	if h.holding && h.entries >= holdEntries {
		h.end()
		h.c.ready(holdEntries)
	}
	if !h.holding {
		h.c.mu.Lock()
		h.holding, h.entries = true, 0
	}
	h.entries++
}

func (h *holder) end() {
	if h.holding {
		h.c.mu.Unlock()
		h.holding = false
		h.c.publish()
	}
}

func (h *holder) insert(p pending) {
	c := h.c
	h.next()
	o := c.row(p.at)
	if _, twice := c.object(&o.id); twice != nil { // in one list
		c.waste(p.at, o.units())
		return
	}
	o.flags &^= isDead
	c.hash.put(c.objectHash(&o.id), p.at)
	if o.is(isBare) {
		c.tally(o, 1)
		return
	}
	k := c.groups[o.group].class
	from := parents{records: c.records(p.at, o), runs: c.runs(p.at, o)}
	for i := range from.records {
		h.next()
		c.insert(k, p.at+rowUnits+ref(i), p.at, from.of(i))
	}
	c.tally(o, 1)
}

// insert puts a record into the hash table, unless there are enough like it.
func (c *Catalog) insert(k *class, at, object ref, parent connector.Key) {
	r := c.record(at)
	h := k.hash(&r.key)
	twins, again := 0, false
	c.hash.find(h, func(other ref) bool {
		if c.matches(other, k, &r.key) {
			row := c.rowOf(other)
			if row == object {
				again = true
			} else if c.row(row).offered() {
				twins++
				c.record(other).at |= isTwin
			}
		}
		return false
	})
	known := twins > 0
	if !known {
		known = c.inSiblings(k, &r.key)
	}
	if known {
		r.at |= isTwin
	}
	if again || twins >= maxTwins {
		r.at |= isLoose
		return
	}
	if !known {
		c.events = append(c.events, k.stored(r.key, parent))
	}
	c.hash.put(h, at)
}

// inSiblings reports whether a record of the same identity, and another size, is offered: subscribers are not told
// of sizes. It marks that one.
func (c *Catalog) inSiblings(k *class, key *connector.Key) (found bool) {
	for _, other := range k.siblings.classes {
		if other == k {
			continue
		}
		if at := c.offer(other, key); at != hashtable.NoRef {
			if r := c.record(at); r.at&isTwin == 0 { // by insert: the lock is held
				r.at |= isTwin
			}
			found = true
		}
	}
	return found
}

// tally adds an object to the sums, or takes it from them. The lock is held.
func (c *Catalog) tally(o *row, sign int64) {
	s := &c.sums
	records := sign * int64(o.records)
	switch {
	case o.is(isDead | isGone):
		return
	case o.is(isLeaving):
		s.LeavingObjects += sign
		s.LeavingBytes += sign * int64(o.bytes)
		return
	}
	s.Objects += sign
	s.Bytes += sign * int64(o.bytes)
	switch {
	case o.offered():
		s.Records += records
		c.groups[o.group].class.offered += records
	case o.is(isLost):
	case c.unreadable(o):
		s.Unreadable += records
	default:
		s.LeftOut += records
	}
}

// addUses notes uses. Those of objects that are not known yet are kept for a while.
func (c *Catalog) addUses(uses []format.Use) {
	for _, u := range uses {
		if _, o := c.object(&u.Object); o != nil {
			o.addUse(u.When)
			continue
		}
		if len(c.early) == maxEarly {
			clear(c.early)
		}
		c.early[u.Object] = max(c.early[u.Object], uint32(u.When))
	}
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
		if c.events = append(c.events, k.removed(r.key)); len(c.events) >= holdEntries {
			c.publish()
		}
	}
}

// tidy forgets objects that were deleted long ago.
func (c *Catalog) tidy() {
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

// ready makes memory ready for so many entries, and gives back what the growth of the hash table has left.
func (c *Catalog) ready(entries int) {
	t := &c.hash
	t.chores(entries)
	if t.emptied == nil && t.emptyBytes() < giveBytes {
		return
	}
	c.mu.Lock()
	emptied := t.emptied
	t.emptied = nil
	region := t.region
	part := region.Emptied(t.moved, giveBytes, 0)
	c.mu.Unlock()
	region.GiveBack(part)
	emptied.Free()
}
