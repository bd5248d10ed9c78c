package host

// drain is a run of units that is kept from use until it is free, for the first waiter of an
// account. Without it, a waiter for large slots could wait indefinitely while small ones come and
// go in every span. The arena's mutex is held for all calls.
type drain struct {
	arena        *Arena
	owner        *Account // nil if nothing is drained
	class        *class
	first, units int
	// drained of the units are unassigned.
	drained int
	// cursor is where the next search for units to drain begins.
	cursor int
}

// overlap returns the part of the units [first, first+n) that is promised, as a range in it; an
// empty one at its end if there is none.
func (d *drain) overlap(first, n int) (begin, end int) {
	begin, end = max(first, d.first), min(first+n, d.first+d.units)
	if d.owner == nil || begin >= end {
		return first + n, first + n
	}
	return begin, end
}

// start keeps memory free for a waiter whose account may have it, if no slot of its size could
// come free by itself.
func (d *drain) start() {
	if d.owner != nil {
		return
	}
	for n := d.arena.queued.Head(); n != nil; n = n.Next() {
		if s := n.Of().queue.First(); s.class.spans == 0 && n.Of().allows(s.class, false) {
			d.startFor(s)
			return
		}
	}
}

func (d *drain) startFor(s *Slot) {
	a, units := d.arena, s.class.spanUnits
	d.first = d.leastBusy(units)
	d.owner, d.class, d.units, d.drained = s.account, s.class, units, 0
	for u := d.first; u < d.first+units; u++ {
		if a.units[u] == 0 {
			d.drained++
		}
	}
	a.count.Drains++
	a.unfree.Set(d.first, units, true)
	a.held.Set(d.first, units, true)
	for u := d.first; u < d.first+units; u++ {
		if at := a.units[u]; at != 0 && (u == d.first || a.units[u-1] != at) {
			d.startOf(at)
		}
	}
}

// leastBusyTries bounds the runs of units that are looked at for one to drain.
const leastBusyTries = 256

// leastBusy returns the start of a run of units with few slots in use: of all, or of the next
// ones after those of the last search.
func (d *drain) leastBusy(units int) int {
	a := d.arena
	runs := len(a.units) - units + 1
	best, least := 0, -1
	for range min(runs, leastBusyTries) {
		first := d.cursor % runs
		d.cursor = first + 1
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

// startOf takes a span's unused slots out of use.
func (d *drain) startOf(at spanID) {
	a := d.arena
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
	a.held.Set(int(p.first), c.spanUnits, true)
	if p.taken == 0 {
		a.dissolve(at)
	}
}

// end gives the units that are not taken yet back to general use.
func (d *drain) end() {
	a, first, units := d.arena, d.first, d.units
	*d = drain{arena: a, cursor: d.cursor}
	for u := first; u < first+units; u++ {
		at := a.units[u]
		switch {
		case at == 0:
			a.setFree(u, u+1)
		case !a.span(at).draining: // made of the units that were kept free
		case u == first || a.units[u-1] != at:
			d.endOf(at)
		}
	}
}

// endOf puts the free slots of a span that was to be drained to use again.
func (d *drain) endOf(at spanID) {
	a := d.arena
	c, p, first := a.classOfSpan(at), a.span(at), a.firstSlot(at)
	p.draining = false
	c.spans++
	for i := range slotID(c.perSpan) {
		if a.slot(first+i).state == slotFree {
			a.pushFront(&c.free, first+i)
		}
	}
	a.held.Set(int(p.first), c.spanUnits, p.busy > 0)
}
