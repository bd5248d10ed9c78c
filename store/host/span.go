package host

import "slices"

// alloc takes a slot of a class, evicting clean ones if need be, or returns 0. The slot is dirty and has no pins.
func (a *Arena) alloc(c *class, owner *Account) slotID {
	if c.free.head == 0 && !a.assignFree(c, owner) && !a.takeIdle(c) {
		a.evictFor(c)
	}
	id := c.free.head
	if id == 0 {
		return 0
	}
	a.unlink(&c.free, id)
	at := a.spanOf(id)
	p := a.span(at)
	if p.taken++; p.taken == 1 {
		a.endIdle(at)
	}
	a.slot(id).state = slotDirty
	return id
}

// evictFor evicts the least recently used slot of the arena that helps a class.
func (a *Arena) evictFor(c *class) {
	var coldest *class
	var age uint32
	now := a.now()
	for _, o := range a.live {
		if o.clean.tail == 0 {
			continue
		}
		if n := now - a.slot(o.clean.tail).used; coldest == nil || n > age {
			coldest, age = o, n
		}
	}
	if coldest == nil {
		return
	}
	if coldest != c && a.takeAround(a.spanOf(coldest.clean.tail), c, false) {
		return
	}
	if c.clean.tail != 0 {
		a.evict(c.clean.tail)
		return
	}
	if first := a.held.Without(c.spanUnits); first >= 0 {
		a.takeRun(c, first)
	}
}

// evict forgets a clean unpinned slot.
func (a *Arena) evict(id slotID) {
	a.unlink(&a.classOfSlot(id).clean, id)
	a.forgetRecord(id)
	a.freeSlot(id)
}

// forgetRecord makes a clean slot unfindable, for room.
func (a *Arena) forgetRecord(id slotID) {
	a.remove(id)
	a.leave(a.slot(id).ns)
	a.count.Evictions++
	if a.endAhead(id) {
		a.count.PrefetchWasted++
	}
	a.cleanBytes -= int64(a.classOfSlot(id).slotBytes)
}

// freeSlot puts an unpinned slot that is in no list among the free ones.
func (a *Arena) freeSlot(id slotID) {
	at := a.spanOf(id)
	c, p := a.classOfSpan(at), a.span(at)
	a.slot(id).state = slotFree
	a.endAhead(id)
	p.taken--
	if p.draining {
		return
	}
	a.pushFront(&c.free, id)
	if p.taken == 0 {
		if a.becomeIdle(at); len(c.idle) > 1 {
			a.dissolve(at) // one is kept for whoever comes next
		}
	}
}

// assignFree makes a span of unassigned units: of the units that are kept for the owner, or of the lowest.
func (a *Arena) assignFree(c *class, owner *Account) bool {
	if d := &a.drain; d.owner != nil && d.owner == owner && d.class == c && d.drained == d.units {
		a.assign(c, d.first)
		return true
	}
	first := a.unfree.Without(c.spanUnits)
	if first < 0 {
		return false
	}
	a.assign(c, first)
	return true
}

// takeIdle takes over spans of other classes that hold nothing.
func (a *Arena) takeIdle(c *class) bool {
	for _, o := range a.live {
		if o != c && len(o.idle) > 0 && a.takeAround(o.idle[len(o.idle)-1], c, true) {
			return true
		}
	}
	return false
}

// takeAround takes over a run of units that overlaps a span, and evicts the clean slots in it;
// with idle set it takes only a run without any.
func (a *Arena) takeAround(at spanID, c *class, idle bool) bool {
	first := int(a.span(at).first)
	last := first + a.classOfSpan(at).spanUnits - 1
	run := 0
	for u := max(0, first-c.spanUnits+1); u < min(len(a.units), last+c.spanUnits); u++ {
		run++
		if a.held.Has(u) || idle && a.units[u] != 0 && a.span(a.units[u]).taken > 0 {
			run = 0
		}
		if run == c.spanUnits {
			a.takeRun(c, u-run+1)
			return true
		}
	}
	return false
}

// takeRun makes units that nobody holds a span of c.
func (a *Arena) takeRun(c *class, first int) {
	for u := first; u < first+c.spanUnits; u++ {
		if at := a.units[u]; at != 0 {
			a.clear(at)
			if a.units[u] == at {
				a.dissolve(at)
			}
		}
	}
	a.assign(c, first)
}

// clear evicts the clean unpinned slots of a span. The span may be dissolved by that.
func (a *Arena) clear(at spanID) {
	first, left := a.firstSlot(at), a.span(at).taken
	for i := slotID(0); left > 0 && i < slotID(a.classOfSpan(at).perSpan); i++ {
		switch s := a.slot(first + i); {
		case s.state == slotFree:
			continue
		case s.state == slotClean && s.pins == 0:
			left-- // before the last one goes: the span may go with it
			a.evict(first + i)
		default:
			left--
		}
	}
}

// dissolve makes the units of a span without taken slots unassigned.
func (a *Arena) dissolve(at spanID) {
	c, p := a.classOfSpan(at), a.span(at)
	if !p.draining {
		a.unlinkFree(at)
		a.endIdle(at)
		c.spans--
	}
	first := int(p.first)
	for u := first; u < first+c.spanUnits; u++ {
		a.units[u] = 0
	}
	a.freeUnits += c.spanUnits
	// What is promised stays out of everybody's reach.
	kept, end := a.drain.overlap(first, c.spanUnits)
	a.drain.drained += end - kept
	a.setFree(first, kept)
	a.setFree(end, first+c.spanUnits)
	a.dropSpan(at)
	if c.all == 0 {
		a.live = slices.DeleteFunc(a.live, func(o *class) bool { return o == c })
	}
}

// setFree marks the units [first, end) as free and not held.
func (a *Arena) setFree(first, end int) {
	if first < end {
		a.unfree.Set(first, end-first, false)
		a.held.Set(first, end-first, false)
	}
}

// unlinkFree takes a span's free slots off their list.
func (a *Arena) unlinkFree(at spanID) {
	c, first := a.classOfSpan(at), a.firstSlot(at)
	for i := range slotID(c.perSpan) {
		if a.slot(first+i).state == slotFree {
			a.unlink(&c.free, first+i)
		}
	}
}

// assign makes unassigned units a span of c with all its slots free.
func (a *Arena) assign(c *class, first int) {
	if c.all == 0 {
		a.live = append(a.live, c)
	}
	at := a.newSpan(c, first)
	begin := a.firstSlot(at)
	for i := c.perSpan - 1; i >= 0; i-- {
		a.slot(begin + slotID(i)).state = slotFree
		a.pushFront(&c.free, begin+slotID(i))
	}
	for u := first; u < first+c.spanUnits; u++ {
		a.units[u] = at
	}
	kept, end := a.drain.overlap(first, c.spanUnits)
	a.drain.drained -= end - kept
	a.unfree.Set(first, c.spanUnits, true)
	a.held.Set(first, c.spanUnits, false)
	a.freeUnits -= c.spanUnits
	a.becomeIdle(at)
	c.spans++
	if end := first + c.spanUnits; end > a.high {
		a.high = end
		select {
		case a.wake <- struct{}{}: // for the populator
		default:
		}
	}
}
