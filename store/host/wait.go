package host

// drain is a run of units that is kept from use until it is free, for the first waiter
// of an account. Without it, a waiter for large slots could wait for ever while small
// ones come and go in every span.
type drain struct {
	owner        *Account // nil if there is none
	class        *class
	first, units int
}

// serve gives memory to those who wait, the accounts in turn.
func (a *Arena) serve() {
	if a.waiting == 0 {
		return
	}
	for failed := 0; failed < len(a.accounts) && a.waiting > 0; {
		a.turn = (a.turn + 1) % len(a.accounts)
		if a.serveOne(a.accounts[a.turn]) {
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
	if s == nil {
		return false
	}
	c.queue.remove(s) // its links may be needed for another queue
	if !a.try(s) {
		c.queue.pushFront(s)
		return false
	}
	a.waiting--
	if a.drain.owner == c {
		a.endDrain()
	}
	s.signal()
	return true
}

// startDrain keeps memory free for a waiter whose account may have it, if there is no
// slot of its size that could come free by itself.
func (a *Arena) startDrain() {
	if a.drain.owner != nil {
		return
	}
	for i := range a.accounts {
		c := a.accounts[(a.turn+1+i)%len(a.accounts)]
		s := c.queue.head
		if s == nil || s.class.spans > 0 || !c.allows(s.class, false) {
			continue
		}
		a.drain = drain{owner: c, class: s.class, first: a.leastBusy(s.class.spanUnits), units: s.class.spanUnits}
		a.count.Drains++
		a.eachDrained(a.startDrainOf)
		return
	}
}

// leastBusy returns the start of the run of units with the fewest slots in use.
func (a *Arena) leastBusy(units int) int {
	best, least := 0, -1
	for first := 0; first+units <= len(a.units); first++ {
		busy := 0
		for u := first; u < first+units; u++ {
			if p := a.units[u]; p != nil {
				busy += p.busy
			}
		}
		if least < 0 || busy < least {
			best, least = first, busy
		}
	}
	return best
}

// eachDrained calls f for every span that overlaps the drained run.
func (a *Arena) eachDrained(f func(*span)) {
	d := &a.drain
	for u := d.first; u < d.first+d.units; u++ {
		p := a.units[u]
		if p != nil && (u == d.first || a.units[u-1] != p) {
			f(p)
		}
	}
}

// startDrainOf takes a span's unused slots out of use.
func (a *Arena) startDrainOf(p *span) {
	a.clear(p)
	if a.units[p.first] != p {
		return // dissolved
	}
	for i := range p.slots {
		if s := &p.slots[i]; s.state == slotFree {
			p.class.free.remove(s)
		}
	}
	if p.taken == 0 {
		p.class.idle--
	}
	p.class.spans--
	p.draining = true
	if p.taken == 0 {
		a.dissolve(p)
	}
}

// endDrain puts what is left of a drain to use again.
func (a *Arena) endDrain() {
	a.eachDrained(func(p *span) {
		if !p.draining {
			return // made of the units that were kept free
		}
		p.draining = false
		p.class.spans++
		for i := range p.slots {
			if s := &p.slots[i]; s.state == slotFree {
				p.class.free.pushFront(s)
			}
		}
	})
	a.drain = drain{}
}
