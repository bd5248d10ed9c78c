package catalog

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/eventlog"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// holdEntries are taken in under one hold of the lock.
	holdEntries = 1000
	// maxTwins of one record are found. There are more if many nodes compute one prompt at the same time: the
	// hash table must not become a list of them.
	maxTwins = 4
	// maxEarly uses are kept of objects that are not known yet: parts come in any order.
	maxEarly = 1 << 16
)

// pending is an object whose units are filled, and that nothing refers to yet.
type pending struct {
	at ref
	o  *format.Object
}

// Apply takes in what a list says, and returns how many records are offered now that were not, and how many
// no longer. Lists may come in any order, and more than once. Reports of readers that found an object lost are passed
// over, since the steward looks for itself. So are objects that could not be encoded.
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

// Reserve says that n more records are about to come: it is quicker to take them in then. It does nothing while
// the catalog grows.
func (c *Catalog) Reserve(n int) {
	c.change(func() {
		n = min(n, int(c.o.IndexBytes/(unitBytes+entryBytes)))
		c.hash.reserve(c.hash.count + n + n/8) // and objects
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
		if !wellFormed(o) {
			continue
		}
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

// wellFormed reports whether an object is as references need it. All that were decoded are.
func wellFormed(o *format.Object) bool {
	return len(o.Records) > 0 && len(o.Records) <= format.MaxObjectRecords &&
		len(o.Runs) > 0 && len(o.Runs) <= len(o.Records) && o.Runs[0].First == 0
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

// identify completes what is known of an object whose removal was known alone.
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
	twins, known, again := c.findTwins(k, at, object)
	if again || twins >= maxTwins {
		r.at |= isLoose
		return
	}
	if !known {
		c.events = append(c.events, eventlog.Stored(k.namespace.number, k.shard, r.key, parent))
	}
	c.hash.put(k.hash(&r.key), at)
}

// findTwins counts the same records that are offered in other objects, and marks them and this one. known says that
// subscribers have been told of the record, again that it is in the hash table for this object. The lock is held.
func (c *Catalog) findTwins(k *class, at, object ref) (twins int, known, again bool) {
	r := c.record(at)
	c.hash.find(k.hash(&r.key), func(other ref) bool {
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
	known = twins > 0
	if !known {
		known = c.inSiblings(k, &r.key)
	}
	if known {
		r.at |= isTwin
	}
	return twins, known, again
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

// addUses notes uses. If an object is not known yet its use is kept for a while.
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

// ready makes memory ready for n entries, and gives back what the growth of the hash table has left.
func (c *Catalog) ready(n int) {
	t := &c.hash
	t.chores(n)
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
