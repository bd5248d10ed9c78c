package coverage

import (
	"slices"
	"sync/atomic"
)

// Add gives h the blocks [from, to), and calls again for the stretches of them that it has already. It returns
// the coverage that is to replace c: c itself if it was changed in place, or not at all.
func (c *Coverage) Add(h Holder, from, to uint32, again func(from, to uint32)) (*Coverage, Change) {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.addHoled(h, at, from, to, again)
	}
	if from < end {
		again(from, min(end, to))
	}
	change := Change{Blocks: to - max(from, end), First: f == formNone}
	switch {
	case to <= end:
		return c, Change{}
	case from > end:
		b := newBitmap(to)
		b.set(0, end, true)
		b.set(from, to, true)
		change.Split, change.Blocks = true, to-from
		return c.without(h, f, at).withHoled(h, b), change
	case f == formCut:
		c.Cuts[at].Store(makeCut(h, to))
		return c, change
	case f == formGroup:
		c = c.withoutMember(h)
	}
	return c.withCut(at, h, to), change
}

// addHoled is Add for a holder with holes.
func (c *Coverage) addHoled(h Holder, at int, from, to uint32, again func(from, to uint32)) (*Coverage, Change) {
	b := c.More.Holed[at].Blocks
	for i := from; i < to; {
		there, end := b.Stretch(i)
		end = min(end, to)
		if there {
			again(i, end)
		}
		i = end
	}
	if to > b.size() {
		b = b.grown(to)
		c = c.withHoled(h, b)
	}
	change := Change{Blocks: b.set(from, to, true)}
	c, change.Healed = c.healed(h, b)
	return c, change
}

// Remove takes the blocks [from, to) from h. It returns the coverage that is to replace c: c itself if
// it was changed in place, or not at all.
func (c *Coverage) Remove(h Holder, from, to uint32) (*Coverage, Change) {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.removeHoled(h, c.More.Holed[at].Blocks, from, to)
	}
	if from >= end {
		return c, Change{}
	}
	to = min(to, end)
	change := Change{Blocks: to - from, Split: to < end}
	switch {
	case change.Split:
		b := newBitmap(end)
		b.set(0, from, true)
		b.set(to, end, true)
		return c.without(h, f, at).withHoled(h, b), change
	case from == 0:
		return c.without(h, f, at), change
	case f == formCut:
		c.Cuts[at].Store(makeCut(h, from))
		return c, change
	}
	return c.withoutMember(h).withCut(at, h, from), change
}

// removeHoled is Remove for a holder with holes.
func (c *Coverage) removeHoled(h Holder, b *Bitmap, from, to uint32) (*Coverage, Change) {
	if from == 0 && to >= b.last() {
		return c.withHoled(h, nil), Change{Blocks: b.count}
	}
	change := Change{Blocks: b.set(from, min(to, b.size()), false)}
	if b.count == 0 {
		return c.withHoled(h, nil), change
	}
	c, change.Healed = c.healed(h, b)
	return c, change
}

// healed is c with a cut in place of h's bitmap if that has no holes.
func (c *Coverage) healed(h Holder, b *Bitmap) (*Coverage, bool) {
	n := b.prefix()
	if n != b.count {
		return c, false
	}
	at, _ := c.searchCuts(h)
	return c.withHoled(h, nil).withCut(at, h, n), true
}

// Truncated is c without the blocks from keep on, predicted ones included. lost is called for each holder
// that has blocks there, with how many.
func (c *Coverage) Truncated(keep uint32, lost func(h Holder, blocks uint32)) *Coverage {
	var cuts []uint64
	var more More
	add := func(h Holder, end uint32) {
		if end > keep {
			lost(h, end-keep)
		}
		if end = min(end, keep); end > 0 {
			cuts = append(cuts, makeCut(h, end))
		}
	}
	for i := range c.Cuts {
		add(c.Cut(i))
	}
	if m := c.More; m != nil {
		if m.GroupEnd <= keep {
			more.Group, more.GroupEnd = m.Group, m.GroupEnd
		} else if m.Group.each(func(h Holder) { lost(h, m.GroupEnd-keep) }); keep > 0 {
			more.Group, more.GroupEnd = m.Group, keep
		}
		for _, e := range m.Holed {
			b := e.Blocks.clone()
			if n := b.set(min(keep, b.size()), b.size(), false); n > 0 {
				lost(e.Holder, n)
			}
			if n := b.prefix(); n == b.count {
				add(e.Holder, n)
			} else {
				more.Holed = append(more.Holed, Holed{e.Holder, b})
			}
		}
		for _, p := range m.Predicted {
			if p.End = min(p.End, keep); p.End > 0 {
				more.Predicted = append(more.Predicted, p)
			}
		}
	}
	return newCoverage(cuts, more)
}

// Clone is a copy of c in which nothing changes when c does.
func (c *Coverage) Clone() *Coverage {
	d := &Coverage{Cuts: make([]atomic.Uint64, len(c.Cuts)), More: c.More}
	for i := range c.Cuts {
		d.Cuts[i].Store(c.Cuts[i].Load())
	}
	if c.More != nil && len(c.More.Holed) > 0 {
		m := *c.More
		m.Holed = slices.Clone(m.Holed)
		for i := range m.Holed {
			m.Holed[i].Blocks = m.Holed[i].Blocks.clone()
		}
		d.More = &m
	}
	return d
}

// newCoverage is a coverage of cuts in any order and of more, which may be empty.
func newCoverage(cuts []uint64, more More) *Coverage {
	slices.Sort(cuts)
	c := &Coverage{Cuts: make([]atomic.Uint64, len(cuts))}
	for i, v := range cuts {
		c.Cuts[i].Store(v)
	}
	return c.withMore(func(m *More) { *m = more })
}

// withCut is c with a cut put in at a position.
func (c *Coverage) withCut(at int, h Holder, end uint32) *Coverage {
	cuts := make([]atomic.Uint64, len(c.Cuts)+1)
	copyCuts(cuts, c.Cuts[:at])
	copyCuts(cuts[at+1:], c.Cuts[at:])
	cuts[at].Store(makeCut(h, end))
	return &Coverage{Cuts: cuts, More: c.More}
}

// withoutCut is c with the cut at a position taken out.
func (c *Coverage) withoutCut(at int) *Coverage {
	cuts := make([]atomic.Uint64, len(c.Cuts)-1)
	copyCuts(cuts, c.Cuts[:at])
	copyCuts(cuts[at:], c.Cuts[at+1:])
	return &Coverage{Cuts: cuts, More: c.More}
}

func copyCuts(to, from []atomic.Uint64) {
	for i := range from {
		to[i].Store(from[i].Load())
	}
}

// without is c without h, as find found it.
func (c *Coverage) without(h Holder, f form, at int) *Coverage {
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
