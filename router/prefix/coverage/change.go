package coverage

import (
	"slices"
	"sync/atomic"
)

// Add gives h the blocks [from, to), and calls again for the stretches of them that it has already. It returns
// the coverage that is to replace c, which is c itself if it was changed in place or not at all, and how
// many blocks h got.
func (c *Coverage) Add(h Holder, from, to uint32, again func(from, to uint32)) (next *Coverage, got uint32) {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.addHoled(h, at, from, to, again)
	}
	if from < end {
		again(from, min(end, to))
	}
	switch {
	case to <= end:
		return c, 0
	case from > end:
		b := newBitmap(to)
		b.set(0, end, true)
		b.set(from, to, true)
		return c.without(h, f, at).withHoled(h, b), to - from
	case f == formCut:
		c.Cuts[at].Store(makeCut(h, to))
		return c, to - end
	}
	return c.without(h, f, at).withCut(at, h, to), to - end
}

func (c *Coverage) addHoled(h Holder, at int, from, to uint32, again func(from, to uint32)) (next *Coverage, got uint32) {
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
		b = b.resized(min(max(to, b.size()*3/2), MaxBlocks))
		c = c.withHoled(h, b)
	}
	got = b.set(from, to, true)
	return c.healed(h, b), got
}

// Remove takes the blocks [from, to) from h. It returns the coverage that is to replace c, which is c itself if
// it was changed in place or not at all, and how many blocks h lost.
func (c *Coverage) Remove(h Holder, from, to uint32) (next *Coverage, lost uint32) {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.removeHoled(h, c.More.Holed[at].Blocks, from, to)
	}
	if from >= end {
		return c, 0
	}
	lost = min(to, end) - from
	switch {
	case to < end:
		b := newBitmap(end)
		b.set(0, from, true)
		b.set(to, end, true)
		return c.without(h, f, at).withHoled(h, b), lost
	case from == 0:
		return c.without(h, f, at), lost
	case f == formCut:
		c.Cuts[at].Store(makeCut(h, from))
		return c, lost
	}
	return c.withoutMember(h).withCut(at, h, from), lost
}

func (c *Coverage) removeHoled(h Holder, b *Bitmap, from, to uint32) (next *Coverage, lost uint32) {
	if from == 0 && to >= b.last() {
		return c.withHoled(h, nil), b.count
	}
	lost = b.set(from, min(to, b.size()), false)
	return c.healed(h, b), lost
}

// healed is c without h's bitmap if that has no holes: with a cut in its place, if h has any blocks.
func (c *Coverage) healed(h Holder, b *Bitmap) *Coverage {
	n := b.prefix()
	if n != b.count {
		return c
	}
	if c = c.withHoled(h, nil); n == 0 {
		return c
	}
	at, _ := c.searchCuts(h)
	return c.withCut(at, h, n)
}

// Truncated is c without the blocks from keep on, predicted ones included; it does not change when c does. lost is
// called for each holder that has blocks there, with how many.
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
			b := e.Blocks.resized(e.Blocks.size())
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

// newCoverage is a coverage of cuts in any order and of more, which may be empty.
func newCoverage(cuts []uint64, more More) *Coverage {
	slices.Sort(cuts)
	c := &Coverage{Cuts: make([]atomic.Uint64, len(cuts))}
	for i, v := range cuts {
		c.Cuts[i].Store(v)
	}
	return c.withMore(func(m *More) { *m = more })
}

func (c *Coverage) withCut(at int, h Holder, end uint32) *Coverage {
	cuts := make([]atomic.Uint64, len(c.Cuts)+1)
	copyCuts(cuts, c.Cuts[:at])
	copyCuts(cuts[at+1:], c.Cuts[at:])
	cuts[at].Store(makeCut(h, end))
	return &Coverage{Cuts: cuts, More: c.More}
}

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
