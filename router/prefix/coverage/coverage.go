// Package coverage says which holders have which blocks of one run of the prefix index.
//
// A holder is kept in one of three forms, which say the same of different sets of blocks:
//
//	cut      ########....    the first blocks: 8 bytes
//	group    ############    the first blocks, as many as all others of the group: a bit
//	bitmap   ###..####..#    with holes
//
// Beside its form a holder may have predictions: first blocks that it is expected to have
// soon.
//
// A [Coverage] is replaced as a whole, except that the end of a cut and the bits of a bitmap
// change in place. There is one writer at a time. Any number of walks may read beside it:
// the exported fields, the holders' bitmaps and [Coverage.End]; all else is the writer's.
package coverage

import (
	"slices"
	"sync/atomic"
)

// MaxBlocks is the largest number of blocks of a run.
const MaxBlocks = 1 << 12

// Coverage says who has which blocks. The zero value says that nobody has any.
type Coverage struct {
	// Cuts are the holders with a run's first blocks, by holder; see [Coverage.Cut]. Most runs need
	// nothing else.
	Cuts []atomic.Uint64
	// More is what few runs need, or nil.
	More *More
}

// More is the part of a coverage that few runs need. It does not change, but the bitmaps in it do.
type More struct {
	// Group are many holders that all have the first GroupEnd blocks.
	Group    Set
	GroupEnd uint32
	// Holed are the holders with holes, by holder.
	Holed []Holed
	// Predicted are blocks that holders are expected to have soon.
	Predicted []Prediction
}

// Holed is a holder with holes.
type Holed struct {
	Holder Holder
	Blocks *Bitmap
}

func makeCut(h Holder, end uint32) uint64      { return uint64(h)<<32 | uint64(end) }
func splitCut(v uint64) (h Holder, end uint32) { return Holder(v >> 32), uint32(v) }

// Cut returns the i-th of the cuts: a holder and how many of the first blocks it has.
func (c *Coverage) Cut(i int) (h Holder, end uint32) { return splitCut(c.Cuts[i].Load()) }

// form is how a coverage keeps a holder.
type form uint8

const (
	formNone form = iota
	formCut
	formGroup
	formHoled
)

// find says how c keeps h: the position among the cuts or those with holes (where it belongs among the cuts
// if formNone), and how many of the first blocks h has (not for formHoled).
func (c *Coverage) find(h Holder) (f form, at int, end uint32) {
	at, ok := c.searchCuts(h)
	if ok {
		_, end = c.Cut(at)
		return formCut, at, end
	}
	if m := c.More; m != nil {
		if m.Group.Has(h) {
			return formGroup, at, m.GroupEnd
		}
		if i, ok := m.findHoled(h); ok {
			return formHoled, i, 0
		}
	}
	return formNone, at, 0
}

func (c *Coverage) searchCuts(h Holder) (int, bool) {
	low, high := 0, len(c.Cuts)
	for low < high {
		mid := (low + high) / 2
		if at, _ := c.Cut(mid); at < h {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low < len(c.Cuts) {
		if at, _ := c.Cut(low); at == h {
			return low, true
		}
	}
	return low, false
}

// Has says whether h has block i, predictions not counted.
func (c *Coverage) Has(h Holder, i uint32) bool {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.More.Holed[at].Blocks.has(i)
	}
	return i < end
}

// Count is how many blocks h has, predictions not counted.
func (c *Coverage) Count(h Holder) uint32 {
	f, at, end := c.find(h)
	if f == formHoled {
		return c.More.Holed[at].Blocks.count
	}
	return end
}

// Knows says whether h has some of the blocks or is expected to.
func (c *Coverage) Knows(h Holder) bool {
	f, _, _ := c.find(h)
	return f != formNone || c.Predicts(h, 0)
}

// Predicts says whether there is a prediction that h has the first n blocks, or more.
func (c *Coverage) Predicts(h Holder, n uint32) bool {
	return c.More != nil && slices.ContainsFunc(c.More.Predicted, func(p Prediction) bool { return p.Holder == h && p.End >= n })
}

// Holders is how many holders have some of the blocks, predictions not counted.
func (c *Coverage) Holders() int {
	n := len(c.Cuts)
	if c.More != nil {
		n += len(c.More.Holed) + c.More.Group.count()
	}
	return n
}

// End is one more than the last block that one of a set of holders has or is expected to have; with nil,
// any holder.
func (c *Coverage) End(of Set) (end uint32) {
	for i := range c.Cuts {
		if h, e := c.Cut(i); e > end && (of == nil || of.Has(h)) {
			end = e
		}
	}
	m := c.More
	if m == nil {
		return end
	}
	if m.GroupEnd > end && (of == nil || of.meets(m.Group)) {
		end = m.GroupEnd
	}
	for _, e := range m.Holed {
		if of == nil || of.Has(e.Holder) {
			end = max(end, e.Blocks.last())
		}
	}
	for _, p := range m.Predicted {
		if of == nil || of.Has(p.Holder) {
			end = max(end, p.End)
		}
	}
	return end
}

// Bytes is about the memory that c takes.
func (c *Coverage) Bytes() int64 {
	const coverageBytes, moreBytes, holedBytes, predictionBytes = 32, 80, 48, 16
	n := coverageBytes + 8*len(c.Cuts)
	if m := c.More; m != nil {
		n += moreBytes + 8*len(m.Group) + predictionBytes*len(m.Predicted)
		for _, e := range m.Holed {
			n += holedBytes + 8*len(e.Blocks.words)
		}
	}
	return int64(n)
}

// Prediction says that a holder is expected to have a run's first End blocks, until
// Deadline (Unix nanoseconds).
type Prediction struct {
	Holder   Holder
	End      uint32
	Deadline int64
}

func (m *More) findHoled(h Holder) (int, bool) {
	return slices.BinarySearchFunc(m.Holed, h, func(e Holed, h Holder) int { return int(e.Holder) - int(h) })
}

// withMore is c with a changed copy of its rarer part, which is left out if it is empty.
func (c *Coverage) withMore(change func(*More)) *Coverage {
	var m More
	if c.More != nil {
		m = *c.More
	}
	change(&m)
	if len(m.Group) == 0 && len(m.Holed) == 0 && len(m.Predicted) == 0 {
		return &Coverage{Cuts: c.Cuts}
	}
	return &Coverage{Cuts: c.Cuts, More: &m}
}

// withHoled is c with a holder's bitmap put in, exchanged, or with nil taken out.
func (c *Coverage) withHoled(h Holder, b *Bitmap) *Coverage {
	return c.withMore(func(m *More) {
		i, ok := m.findHoled(h)
		m.Holed = slices.Clone(m.Holed)
		switch {
		case b == nil:
			m.Holed = slices.Delete(m.Holed, i, i+1)
		case ok:
			m.Holed[i].Blocks = b
		default:
			m.Holed = slices.Insert(m.Holed, i, Holed{h, b})
		}
	})
}

func (c *Coverage) withoutMember(h Holder) *Coverage {
	return c.withMore(func(m *More) {
		m.Group = slices.Clone(m.Group)
		if m.Group[h/64] &^= 1 << (h % 64); m.Group.count() == 0 {
			m.Group, m.GroupEnd = nil, 0
		}
	})
}

// WithPrediction is c with a prediction, which takes the place of those that say less. It is c itself if one
// that is there says as much.
func (c *Coverage) WithPrediction(p Prediction) *Coverage {
	says := func(more, less Prediction) bool {
		return more.Holder == less.Holder && more.End >= less.End && more.Deadline >= less.Deadline
	}
	if c.More != nil && slices.ContainsFunc(c.More.Predicted, func(q Prediction) bool { return says(q, p) }) {
		return c
	}
	return c.withMore(func(m *More) {
		m.Predicted = append(slices.DeleteFunc(slices.Clone(m.Predicted), func(q Prediction) bool { return says(p, q) }), p)
	})
}

// WithoutPredictions is c without those that drop says; c itself if there is none.
func (c *Coverage) WithoutPredictions(drop func(Prediction) bool) *Coverage {
	if c.More == nil || !slices.ContainsFunc(c.More.Predicted, drop) {
		return c
	}
	return c.withMore(func(m *More) { m.Predicted = slices.DeleteFunc(slices.Clone(m.Predicted), drop) })
}

// GroupHolders is how many holders with the same cut become a group: fewer are as fast one by one.
const GroupHolders = 16

// Regrouped is c with a group of all holders that have exactly the first n blocks; c itself where that would
// not pay.
func (c *Coverage) Regrouped(n uint32) *Coverage {
	members := 0
	for i := range c.Cuts {
		if _, end := c.Cut(i); end == n {
			members++
		}
	}
	var more More
	if c.More != nil {
		more = *c.More
	}
	if more.GroupEnd != n && members < max(GroupHolders, more.Group.count()) {
		return c
	}
	var cuts []uint64
	if more.GroupEnd != n {
		more.Group.each(func(h Holder) { cuts = append(cuts, makeCut(h, more.GroupEnd)) })
		more.Group, more.GroupEnd = nil, n
	}
	group := slices.Clone(more.Group)
	for i := range c.Cuts {
		h, end := c.Cut(i)
		if end != n {
			cuts = append(cuts, makeCut(h, end))
			continue
		}
		for int(h/64) >= len(group) {
			group = append(group, 0)
		}
		group[h/64] |= 1 << (h % 64)
	}
	more.Group = slices.Clip(group)
	return newCoverage(cuts, more)
}
