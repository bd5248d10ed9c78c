package host

// drain is a run of units that is kept from use until it is free, for the first waiter
// of an account. Without it, a waiter for large slots could wait for ever while small
// ones come and go in every span.
type drain struct {
	owner        *Account // nil if there is none
	class        *class
	first, units int
	// drained of the units are unassigned.
	drained int
}

// overlap returns the part of the units [first, first+n) that is promised, as a range that
// lies in it; an empty one where nothing is.
func (d *drain) overlap(first, n int) (begin, end int) {
	if d.owner == nil {
		return first + n, first + n
	}
	begin, end = max(first, d.first), min(first+n, d.first+d.units)
	if begin >= end {
		return first + n, first + n
	}
	return begin, end
}

// serve gives memory to those who wait, the accounts in turn.
func (a *Arena) serve() {
	if a.waiting == 0 {
		return
	}
	// Only accounts with waiters are looked at. They move to the end as they are tried.
	for failed := 0; failed < a.queued.len; {
		c := a.queued.head
		a.queued.rotate()
		if a.serveOne(c) {
			failed = 0
		} else {
			failed++
		}
	}
	a.startDrain()
}

// serveOne serves an account's first waiter if that is possible.
func (a *Arena) serveOne(c *Account) bool {
	s := c.queue.head
	c.queue.remove(s) // its links may be needed for another queue
	if !a.try(s) {
		c.queue.pushFront(s)
		return false
	}
	a.dequeued(c)
	if a.drain.owner == c {
		a.endDrain()
	}
	s.signal()
	return true
}

// enqueue makes a handle wait for memory.
func (a *Arena) enqueue(s *Slot) {
	c := s.account
	if c.queue.head == nil {
		a.queued.push(c)
		a.countActive(c)
	}
	c.queue.push(s)
	a.waiting++
}

// dequeued takes in that one of an account's waiters is off its queue.
func (a *Arena) dequeued(c *Account) {
	a.waiting--
	if c.queue.head == nil {
		a.queued.remove(c)
		a.countActive(c)
	}
}

// accountRing is a ring of accounts.
type accountRing struct {
	head *Account
	len  int
}

func (r *accountRing) push(c *Account) {
	if r.head == nil {
		r.head, c.prev, c.next = c, c, c
	} else {
		c.prev, c.next = r.head.prev, r.head
		c.prev.next, c.next.prev = c, c
	}
	r.len++
}

func (r *accountRing) remove(c *Account) {
	if r.head == c {
		r.head = c.next
	}
	if r.len--; r.len == 0 {
		r.head = nil
	}
	c.prev.next, c.next.prev = c.next, c.prev
	c.prev, c.next = nil, nil
}

func (r *accountRing) rotate() { r.head = r.head.next }

// startDrain keeps memory free for a waiter whose account may have it, if there is no
// slot of its size that could come free by itself.
func (a *Arena) startDrain() {
	if a.drain.owner != nil {
		return
	}
	c := a.queued.head
	for range a.queued.len {
		if s := c.queue.head; s.class.spans == 0 && c.allows(s.class, false) {
			a.startDrainFor(s)
			return
		}
		c = c.next
	}
}

func (a *Arena) startDrainFor(s *Slot) {
	units := s.class.spanUnits
	d := drain{owner: s.account, class: s.class, first: a.leastBusy(units), units: units}
	for u := d.first; u < d.first+units; u++ {
		if a.units[u] == 0 {
			d.drained++
		}
	}
	a.drain = d
	a.count.Drains++
	a.unfree.set(d.first, units, true)
	a.held.set(d.first, units, true)
	a.eachDrained(a.startDrainOf)
}

// leastBusyTries bounds the runs of units that are looked at for one to drain.
const leastBusyTries = 256

// leastBusy returns the start of a run of units with few slots in use: of all, or of the
// next ones after those that were looked at the last time.
func (a *Arena) leastBusy(units int) int {
	runs := len(a.units) - units + 1
	best, least := 0, -1
	for range min(runs, leastBusyTries) {
		first := a.drainCursor % runs
		a.drainCursor = first + 1
		busy := 0
		for u := first; u < first+units; u++ {
			if at := a.units[u]; at != 0 {
				busy += int(a.span(at).busy)
			}
		}
		if least < 0 || busy < least {
			best, least = first, busy
		}
	}
	return best
}

// eachDrained calls f for every span that overlaps the drained run.
func (a *Arena) eachDrained(f func(spanID)) {
	d := a.drain
	for u := d.first; u < d.first+d.units; u++ {
		at := a.units[u]
		if at != 0 && (u == d.first || a.units[u-1] != at) {
			f(at)
		}
	}
}

// startDrainOf takes a span's unused slots out of use.
func (a *Arena) startDrainOf(at spanID) {
	unit := a.span(at).first
	a.clear(at)
	if a.units[unit] != at {
		return // dissolved
	}
	c, p := a.classOfSpan(at), a.span(at)
	a.unlinkFree(at)
	if p.taken == 0 {
		a.endIdle(at)
	}
	c.spans--
	p.draining = true
	a.held.set(int(p.first), c.spanUnits, true)
	if p.taken == 0 {
		a.dissolve(at)
	}
}

// endDrain puts what is left of a drain to use again.
func (a *Arena) endDrain() {
	d := a.drain
	a.drain = drain{}
	for u := d.first; u < d.first+d.units; u++ {
		at := a.units[u]
		switch {
		case at == 0:
			a.setFree(u, u+1)
		case !a.span(at).draining: // made of the units that were kept free
		case u == d.first || a.units[u-1] != at:
			a.endDrainOf(at)
		}
	}
}

// endDrainOf puts the free slots of a span that was to be drained to use again.
func (a *Arena) endDrainOf(at spanID) {
	c, p, first := a.classOfSpan(at), a.span(at), a.firstSlot(at)
	p.draining = false
	c.spans++
	for i := range slotID(c.perSpan) {
		if a.slot(first+i).state == slotFree {
			a.pushFront(&c.free, first+i)
		}
	}
	a.held.set(int(p.first), c.spanUnits, p.busy > 0)
}
