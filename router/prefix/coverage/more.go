package coverage

import "slices"

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

func (m *More) predicts(h Holder) bool {
	return slices.ContainsFunc(m.Predicted, func(p Prediction) bool { return p.Holder == h })
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

// withoutMember is c with a holder taken out of the group.
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
