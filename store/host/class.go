package host

import (
	"slices"

	"github.com/kvconn/kvconn/store"
)

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

// live lists the classes that have spans now: few, of all sizes that were ever asked for.
type live []*class

func (l *live) add(c *class) { *l = append(*l, c) }

func (l *live) remove(c *class) {
	if i := slices.Index(*l, c); i >= 0 {
		*l = slices.Delete(*l, i, i+1)
	}
}
