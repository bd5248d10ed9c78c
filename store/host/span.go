package host

import "github.com/kvconn/kvconn/store"

// class is all slots of one size.
type class struct {
	slotBytes int
	// spanUnits is the length of a span; perSpan slots fit into it.
	spanUnits, perSpan int
	spans              int // not draining
	free               slotList
	clean              slotList // unpinned, most recently used first
	idle               int      // spans all of whose slots are free
}

// span is a stretch of units that holds slots of one class.
type span struct {
	class *class
	first int // unit
	slots []slot
	// busy slots are pinned, taken slots are not free.
	busy, taken int
	// draining keeps the slots from being used again: the units are promised to a waiter.
	draining bool
}

// slotState is what is in a slot.
type slotState uint8

const (
	slotFree    slotState = iota
	slotDirty             // reserved, or no longer findable
	slotFilling           // being read; findable by those who want to wait for it
	slotClean             // verified
)

// slot is guarded by the arena's mutex, except for its bytes.
type slot struct {
	span    *span
	index   int
	state   slotState
	pins    int
	rec     Record
	payload int
	used    uint64 // tick of the last use
	// prev and next link the slot into its class's free or clean list.
	prev, next *slot
	// waiters want the record that is being filled.
	waiters slotQueue
}

func (s *slot) offset(unitBytes int) int64 {
	return int64(s.span.first)*int64(unitBytes) + int64(s.index)*int64(s.span.class.slotBytes)
}

// slotList is a doubly linked list of slots.
type slotList struct{ head, tail *slot }

func (l *slotList) pushFront(s *slot) {
	s.prev, s.next = nil, l.head
	if l.head != nil {
		l.head.prev = s
	} else {
		l.tail = s
	}
	l.head = s
}

func (l *slotList) remove(s *slot) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		l.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		l.tail = s.prev
	}
	s.prev, s.next = nil, nil
}

// wastePart of a span may stay unused.
const wastePart = 8

// classOf returns the class of slots for a payload, or nil if the arena is too small.
func (a *Arena) classOf(payloadBytes int) *class {
	if payloadBytes < store.MinPayloadBytes || payloadBytes > store.MaxPayloadBytes {
		return nil
	}
	size := store.PayloadBufferSize(payloadBytes)
	if c := a.bySize[size]; c != nil {
		return c
	}
	unit := a.opts.unitBytes
	least := (size + unit - 1) / unit
	if least > len(a.units) {
		return nil
	}
	c := &class{slotBytes: size, spanUnits: least}
	for k := least; k <= min(least+wastePart, len(a.units)); k++ {
		if k*unit%size <= k*unit/wastePart {
			c.spanUnits = k
			break
		}
	}
	c.perSpan = c.spanUnits * unit / size
	a.bySize[size] = c
	a.classes = append(a.classes, c)
	return c
}

// alloc takes a slot of a class, evicting clean ones if need be, or returns nil. The slot
// is dirty and has no pins.
func (a *Arena) alloc(c *class, owner *Account) *slot {
	if c.free.head == nil && !a.assignFree(c, owner) && !a.takeIdle(c, owner) {
		a.evictFor(c, owner)
	}
	s := c.free.head
	if s == nil {
		return nil
	}
	c.free.remove(s)
	if s.span.taken++; s.span.taken == 1 {
		c.idle--
	}
	s.state = slotDirty
	return s
}

// evictFor evicts the least recently used slot of the arena that helps a class.
func (a *Arena) evictFor(c *class, owner *Account) {
	var coldest *class
	for _, o := range a.classes {
		if t := o.clean.tail; t != nil && (coldest == nil || t.used < coldest.clean.tail.used) {
			coldest = o
		}
	}
	if coldest == nil {
		return
	}
	if coldest != c && a.takeAround(coldest.clean.tail.span, c, owner) {
		return
	}
	if t := c.clean.tail; t != nil {
		a.evict(t)
		return
	}
	a.takeAnywhere(c, owner)
}

// evict forgets a clean unpinned slot.
func (a *Arena) evict(s *slot) {
	s.span.class.clean.remove(s)
	delete(a.records, s.rec.ID)
	a.count.Evictions++
	a.cleanBytes -= int64(s.span.class.slotBytes)
	a.freeSlot(s)
}

// freeSlot puts an unpinned slot that is in no list among the free ones.
func (a *Arena) freeSlot(s *slot) {
	p := s.span
	s.state, s.rec = slotFree, Record{}
	p.taken--
	if p.draining {
		return
	}
	p.class.free.pushFront(s)
	if p.taken == 0 {
		if p.class.idle++; p.class.idle > 1 {
			a.dissolve(p) // one is kept for whoever comes next
		}
	}
}

// available reports whether a unit may be given to owner.
func (a *Arena) available(unit int, owner *Account) bool {
	d := &a.drain
	return d.owner == nil || d.owner == owner || unit < d.first || unit >= d.first+d.units
}

// takeable reports whether a unit is free or holds nothing but free and clean slots.
func (a *Arena) takeable(unit int, owner *Account) bool {
	p := a.units[unit]
	return a.available(unit, owner) && (p == nil || p.busy == 0 && !p.draining)
}

// assignFree makes a span of unassigned units, the lowest first.
func (a *Arena) assignFree(c *class, owner *Account) bool {
	if a.freeUnits < c.spanUnits {
		return false
	}
	run := 0
	for u := a.lowestFree(); u < len(a.units); u++ {
		if run++; a.units[u] != nil || !a.available(u, owner) {
			run = 0
		}
		if run == c.spanUnits {
			a.assign(c, u-run+1)
			return true
		}
	}
	return false
}

func (a *Arena) lowestFree() int {
	for a.low < len(a.units) && a.units[a.low] != nil {
		a.low++
	}
	return a.low
}

// takeIdle takes over spans of other classes that hold nothing.
func (a *Arena) takeIdle(c *class, owner *Account) bool {
	for _, o := range a.classes {
		if o != c && o.idle > 0 {
			for s := o.free.head; s != nil; s = s.next {
				if s.span.taken == 0 {
					if a.takeIf(s.span, c, owner, func(p *span) bool { return p.taken == 0 }) {
						return true
					}
					break
				}
			}
		}
	}
	return false
}

// takeAround takes over a run of units that contains a span, with all clean slots in it.
func (a *Arena) takeAround(p *span, c *class, owner *Account) bool {
	return a.takeIf(p, c, owner, func(*span) bool { return true })
}

func (a *Arena) takeIf(p *span, c *class, owner *Account, allowed func(*span) bool) bool {
	last := p.first + p.class.spanUnits - 1
	for first := max(0, p.first-c.spanUnits+1); first <= min(last, len(a.units)-c.spanUnits); first++ {
		ok := true
		for u := first; u < first+c.spanUnits && ok; u++ {
			ok = a.takeable(u, owner) && (a.units[u] == nil || allowed(a.units[u]))
		}
		if ok {
			a.takeRun(c, first)
			return true
		}
	}
	return false
}

// takeAnywhere takes over the first run of units that can be.
func (a *Arena) takeAnywhere(c *class, owner *Account) bool {
	run := 0
	for u := range a.units {
		if run++; !a.takeable(u, owner) {
			run = 0
		}
		if run == c.spanUnits {
			a.takeRun(c, u-run+1)
			return true
		}
	}
	return false
}

// takeRun makes takeable units a span of c.
func (a *Arena) takeRun(c *class, first int) {
	for u := first; u < first+c.spanUnits; u++ {
		if p := a.units[u]; p != nil {
			a.clear(p)
			if a.units[u] == p {
				a.dissolve(p)
			}
		}
	}
	a.assign(c, first)
}

// clear evicts the clean unpinned slots of a span. The span may be dissolved by that.
func (a *Arena) clear(p *span) {
	for i := range p.slots {
		if s := &p.slots[i]; s.state == slotClean && s.pins == 0 {
			a.evict(s)
		}
	}
}

// dissolve makes the units of a span without taken slots unassigned.
func (a *Arena) dissolve(p *span) {
	if !p.draining {
		for i := range p.slots {
			p.class.free.remove(&p.slots[i])
		}
		p.class.idle--
		p.class.spans--
	}
	for u := p.first; u < p.first+p.class.spanUnits; u++ {
		a.units[u] = nil
	}
	a.freeUnits += p.class.spanUnits
	a.low = min(a.low, p.first)
}

// assign makes unassigned units a span of c with all its slots free.
func (a *Arena) assign(c *class, first int) {
	p := &span{class: c, first: first, slots: make([]slot, c.perSpan)}
	for i := len(p.slots) - 1; i >= 0; i-- {
		s := &p.slots[i]
		s.span, s.index = p, i
		c.free.pushFront(s)
	}
	for u := first; u < first+c.spanUnits; u++ {
		a.units[u] = p
	}
	a.freeUnits -= c.spanUnits
	c.idle++
	c.spans++
	if end := first + c.spanUnits; end > a.high {
		a.high = end
		a.wakePopulator()
	}
}
