package host

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// The arena keeps what it knows of slots in slabs: tables without pointers, which the garbage
// collector does not look into. Numbers name slots and spans.
const (
	slabBits  = 12
	slabSlots = 1 << slabBits
	// maxSlabs is how many slabs numbers can name.
	maxSlabs = 1 << (32 - slabBits)
)

// slotID names a slot: its slab and its place there. 0 names none.
type slotID uint32

// spanID names a span in the same way.
type spanID uint32

// namespaceID is the arena's number of a namespace, from 1 on.
type namespaceID uint32

// slotKey is what a slot is found by.
type slotKey struct {
	ns    namespaceID
	shard connector.Shard
	key   connector.Key
}

// slotState is what is in a slot of the arena:
//
//	free ──taken──► dirty ──findable──► filling ──Publish──► clean ──evicted──► free
//	                dirty ──Publish──► clean
//	                dirty, filling ──Release──► free
//
// A dirty or filling slot is pinned by the one handle that may write to it. A clean one is pinned
// by any number of handles, or by none and then in its class's list.
type slotState uint8

const (
	slotFree    slotState = iota
	slotDirty             // reserved, and not findable
	slotFilling           // being read, and findable by callers that wait for it
	slotClean             // verified
)

// slot is guarded by the arena's mutex. Of its record it keeps what must be compared: the proof
// covers the whole prefix and, with the hash, stands for the key.
type slot struct {
	proof connector.Proof
	hash  uint64 // of the record's id, see [index]
	ns    namespaceID
	// prev and next link the slot into its class's free or clean list, chain to the next
	// one of its bucket of the index.
	prev, next, chain slotID
	pins              uint32
	used              uint32 // the time of its last use, see [Arena.now]
	shard             connector.Shard
	parent            uint16 // check of the parent's key
	short             uint16 // bytes of the slot after the payload
	state             slotState
	// ahead is the mark of [aheads] while the record is read, or was read, before its load, and no load
	// has come; else 0.
	ahead uint8
}

// span is a stretch of units that holds slots of one class.
type span struct {
	first uint32 // unit
	// idle is the span's place among the idle ones of its class.
	idle uint32
	// busy slots are pinned, taken slots are not free.
	busy, taken uint32
	// draining keeps the slots from being used again: the units are promised to a waiter.
	draining bool
}

// slab holds the slots of some spans of a class.
type slab struct {
	class *class
	slots []slot
	spans []span
	// vacant are the places without a span.
	vacant []uint32
}

func (a *Arena) slot(id slotID) *slot { return &a.slabs[id>>slabBits].slots[id&(slabSlots-1)] }

func (a *Arena) span(id spanID) *span { return &a.slabs[id>>slabBits].spans[id&(slabSlots-1)] }

func (a *Arena) classOfSlot(id slotID) *class { return a.slabs[id>>slabBits].class }

func (a *Arena) classOfSpan(id spanID) *class { return a.slabs[id>>slabBits].class }

// spanOf returns the span that a slot lies in.
func (a *Arena) spanOf(id slotID) spanID {
	perSpan := uint32(a.classOfSlot(id).perSpan)
	return spanID(uint32(id)&^(slabSlots-1) | uint32(id)&(slabSlots-1)/perSpan)
}

// firstSlot returns the first slot of a span; the others follow.
func (a *Arena) firstSlot(id spanID) slotID {
	perSpan := uint32(a.classOfSpan(id).perSpan)
	return slotID(uint32(id)&^(slabSlots-1) | uint32(id)&(slabSlots-1)*perSpan)
}

// newSpan makes a span of a class that begins with a unit.
func (a *Arena) newSpan(c *class, first int) spanID {
	if len(c.open) == 0 {
		c.open = append(c.open, a.newSlab(c))
	}
	n := c.open[len(c.open)-1]
	s := &a.slabs[n]
	at := s.vacant[len(s.vacant)-1]
	if s.vacant = s.vacant[:len(s.vacant)-1]; len(s.vacant) == 0 {
		c.open = c.open[:len(c.open)-1]
	}
	s.spans[at] = span{first: uint32(first)}
	c.all++
	return spanID(n<<slabBits | at)
}

// dropSpan takes a span without taken slots away. The tables of a class that has no span left are given back.
func (a *Arena) dropSpan(id spanID) {
	n := uint32(id) >> slabBits
	s := &a.slabs[n]
	c := s.class
	if len(s.vacant) == 0 {
		c.open = append(c.open, n)
	}
	s.vacant = append(s.vacant, uint32(id)&(slabSlots-1))
	if c.all--; c.all > 0 {
		return
	}
	for _, n := range c.open {
		a.slabs[n] = slab{}
		a.vacantSlabs = append(a.vacantSlabs, n)
	}
	c.open = nil
}

// newSlab makes a table for a class: for as many spans as it has numbers for, or the arena has room for.
func (a *Arena) newSlab(c *class) uint32 {
	spans := min(slabSlots/c.perSpan, len(a.units)/c.spanUnits)
	s := slab{class: c, slots: make([]slot, spans*c.perSpan), spans: make([]span, spans), vacant: make([]uint32, spans)}
	for i := range s.vacant {
		s.vacant[i] = uint32(spans - 1 - i)
	}
	if n := len(a.vacantSlabs); n > 0 {
		at := a.vacantSlabs[n-1]
		a.vacantSlabs = a.vacantSlabs[:n-1]
		a.slabs[at] = s
		return at
	}
	a.slabs = append(a.slabs, s)
	return uint32(len(a.slabs) - 1)
}

type slotList struct{ head, tail slotID }

func (a *Arena) pushFront(l *slotList, id slotID) {
	s := a.slot(id)
	s.prev, s.next = 0, l.head
	if l.head != 0 {
		a.slot(l.head).prev = id
	} else {
		l.tail = id
	}
	l.head = id
}

func (a *Arena) unlink(l *slotList, id slotID) {
	s := a.slot(id)
	if s.prev != 0 {
		a.slot(s.prev).next = s.next
	} else {
		l.head = s.next
	}
	if s.next != 0 {
		a.slot(s.next).prev = s.prev
	} else {
		l.tail = s.prev
	}
	s.prev, s.next = 0, 0
}

// becomeIdle notes that a span's slots are all free.
func (a *Arena) becomeIdle(id spanID) {
	c := a.classOfSpan(id)
	a.span(id).idle = uint32(len(c.idle))
	c.idle = append(c.idle, id)
}

func (a *Arena) endIdle(id spanID) {
	c, place := a.classOfSpan(id), a.span(id).idle
	last := len(c.idle) - 1
	c.idle[place] = c.idle[last]
	a.span(c.idle[place]).idle = place
	c.idle = c.idle[:last]
}

// class is all slots of one size.
type class struct {
	slotBytes int
	// spanUnits is the length of a span; perSpan slots fit into it.
	spanUnits, perSpan int
	spans, all         int // spans that are not draining, and all
	free               slotList
	clean              slotList // unpinned, most recently used first
	idle               []spanID // all of whose slots are free
	open               []uint32 // slabs with room for more spans
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
	return c
}
