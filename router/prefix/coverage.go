package prefix

import (
	"slices"
	"sync/atomic"
)

// coverage says who holds which blocks of one run. It is replaced as a whole, except that
// the end of a cut and the bits of a bitmap change in place; walks read it beside that.
type coverage struct {
	// cuts are the holders that have the run's first blocks, by holder: holder<<32 | how
	// many. Most runs need nothing else.
	cuts []atomic.Uint64
	more *moreCoverage
}

// moreCoverage is what few runs need.
type moreCoverage struct {
	// group is a bitset of many holders that all have the first groupEnd blocks.
	group    []uint64
	groupEnd uint32
	// holed are the holders with holes, by holder.
	holed []holed
	// predicted are blocks that holders are expected to have soon.
	predicted []prediction
}

type holed struct {
	h    Holder
	bits *bitmap
}

// prediction says that a holder is expected to have a run's first end blocks, until
// deadline (Unix nanoseconds).
type prediction struct {
	h        Holder
	end      uint32
	deadline int64
}

func makeCut(h Holder, end uint32) uint64      { return uint64(h)<<32 | uint64(end) }
func splitCut(v uint64) (h Holder, end uint32) { return Holder(v >> 32), uint32(v) }

// form is how a coverage keeps a holder.
type form uint8

const (
	formNone form = iota
	formCut
	formGroup
	formHoled
)

// find says how c keeps h: the position among the cuts or the holed (where it belongs if
// formNone), and how many of the first blocks h has (not for formHoled).
func (c *coverage) find(h Holder) (f form, at int, end uint32) {
	at, ok := searchCuts(c.cuts, h)
	if ok {
		_, end = splitCut(c.cuts[at].Load())
		return formCut, at, end
	}
	if m := c.more; m != nil {
		if hasBit(m.group, h) {
			return formGroup, at, m.groupEnd
		}
		if i, ok := m.findHoled(h); ok {
			return formHoled, i, 0
		}
	}
	return formNone, at, 0
}

// has says whether h has block off, predictions not counted.
func (c *coverage) has(h Holder, off uint32) bool {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.more.holed[at].bits.has(off)
	}
	return off < end
}

func searchCuts(cuts []atomic.Uint64, h Holder) (int, bool) {
	low, high := 0, len(cuts)
	for low < high {
		mid := (low + high) / 2
		if at, _ := splitCut(cuts[mid].Load()); at < h {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low < len(cuts) {
		if at, _ := splitCut(cuts[low].Load()); at == h {
			return low, true
		}
	}
	return low, false
}

func (m *moreCoverage) findHoled(h Holder) (int, bool) {
	return slices.BinarySearchFunc(m.holed, h, func(e holed, h Holder) int { return int(e.h) - int(h) })
}

func hasBit(set []uint64, h Holder) bool {
	return int(h/64) < len(set) && set[h/64]>>(h%64)&1 != 0
}

// withCut is c with a cut put in at a position.
func (c *coverage) withCut(at int, h Holder, end uint32) *coverage {
	cuts := make([]atomic.Uint64, len(c.cuts)+1)
	for i := range c.cuts {
		j := i
		if i >= at {
			j++
		}
		cuts[j].Store(c.cuts[i].Load())
	}
	cuts[at].Store(makeCut(h, end))
	return &coverage{cuts: cuts, more: c.more}
}

// withoutCut is c with the cut at a position taken out.
func (c *coverage) withoutCut(at int) *coverage {
	cuts := make([]atomic.Uint64, len(c.cuts)-1)
	for i := range cuts {
		j := i
		if i >= at {
			j++
		}
		cuts[i].Store(c.cuts[j].Load())
	}
	return &coverage{cuts: cuts, more: c.more}
}

// withMore is c with a changed copy of its rarer part, which is left out if it is empty.
func (c *coverage) withMore(change func(*moreCoverage)) *coverage {
	var m moreCoverage
	if c.more != nil {
		m = *c.more
	}
	change(&m)
	if len(m.group) == 0 && len(m.holed) == 0 && len(m.predicted) == 0 {
		return &coverage{cuts: c.cuts}
	}
	return &coverage{cuts: c.cuts, more: &m}
}

// withHoled is c with a holder's bitmap put in, exchanged, or with nil taken out.
func (c *coverage) withHoled(h Holder, b *bitmap) *coverage {
	return c.withMore(func(m *moreCoverage) {
		i, ok := m.findHoled(h)
		list := slices.Clone(m.holed)
		switch {
		case b == nil:
			list = slices.Delete(list, i, i+1)
		case ok:
			list[i].bits = b
		default:
			list = slices.Insert(list, i, holed{h, b})
		}
		m.holed = list
	})
}

// withoutMember is c with a holder taken out of the group.
func (c *coverage) withoutMember(h Holder) *coverage {
	return c.withMore(func(m *moreCoverage) {
		m.group = slices.Clone(m.group)
		m.group[h/64] &^= 1 << (h % 64)
		for _, w := range m.group {
			if w != 0 {
				return
			}
		}
		m.group, m.groupEnd = nil, 0
	})
}

// without is c without h, of which find said f and at.
func (c *coverage) without(h Holder, f form, at int) *coverage {
	switch f {
	case formCut:
		return c.withoutCut(at)
	case formGroup:
		return c.withoutMember(h)
	case formHoled:
		return c.withHoled(h, nil)
	}
	return c
}

// clone is a copy of c of which nothing changes when c does.
func (c *coverage) clone() *coverage {
	d := &coverage{cuts: make([]atomic.Uint64, len(c.cuts)), more: c.more}
	for i := range c.cuts {
		d.cuts[i].Store(c.cuts[i].Load())
	}
	if c.more != nil && len(c.more.holed) > 0 {
		m := *c.more
		m.holed = slices.Clone(m.holed)
		for i := range m.holed {
			m.holed[i].bits = m.holed[i].bits.clone()
		}
		d.more = &m
	}
	return d
}

// heldEnd is one more than the last block that anyone has or is expected to have.
func (c *coverage) heldEnd() uint32 {
	var end uint32
	for i := range c.cuts {
		_, e := splitCut(c.cuts[i].Load())
		end = max(end, e)
	}
	if m := c.more; m != nil {
		end = max(end, m.groupEnd)
		for _, e := range m.holed {
			end = max(end, e.bits.last())
		}
		for _, p := range m.predicted {
			end = max(end, p.end)
		}
	}
	return end
}

// holders is how many holders have some of the run, predictions not counted.
func (c *coverage) holders() int {
	n := len(c.cuts)
	if c.more != nil {
		n += len(c.more.holed) + popCount(c.more.group)
	}
	return n
}

// bytes is the memory that c takes.
func (c *coverage) bytes() int64 {
	const coverageBytes, moreBytes, holedBytes, predictionBytes = 32, 80, 48, 16
	n := coverageBytes + 8*len(c.cuts)
	if m := c.more; m != nil {
		n += moreBytes + 8*len(m.group) + predictionBytes*len(m.predicted)
		for _, e := range m.holed {
			n += holedBytes + 8*len(e.bits.words)
		}
	}
	return int64(n)
}
