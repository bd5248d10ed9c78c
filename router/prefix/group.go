package prefix

import (
	"math/bits"
	"slices"
	"sync/atomic"
)

// groupHolders is how many holders with the same cut-off become a group: fewer are as fast
// one by one.
const groupHolders = 16

// regroup is called when a cut got to the run's end. Once half of the cuts have, those
// that are there become a group, so that the work is paid for by the calls.
func (r *run) regroup() {
	c := r.cover.Load()
	r.reached++
	if len(c.cuts) < groupHolders || int(r.reached) < len(c.cuts)/2 {
		return
	}
	r.reached = 0
	n := r.len()
	members := 0
	for i := range c.cuts {
		if _, end := splitCut(c.cuts[i].Load()); end == n {
			members++
		}
	}
	var more moreCoverage
	if c.more != nil {
		more = *c.more
	}
	if more.groupEnd != n && members < max(groupHolders, popCount(more.group)) {
		return
	}
	var cuts []uint64
	if more.groupEnd != n {
		eachBit(more.group, func(h Holder) { cuts = append(cuts, makeCut(h, more.groupEnd)) })
		more.group, more.groupEnd = nil, n
	}
	group := slices.Clone(more.group)
	for i := range c.cuts {
		v := c.cuts[i].Load()
		h, end := splitCut(v)
		if end != n {
			cuts = append(cuts, v)
			continue
		}
		for int(h/64) >= len(group) {
			group = append(group, 0)
		}
		group[h/64] |= 1 << (h % 64)
	}
	more.group = slices.Clip(group)
	r.cover.Store(newCoverage(cuts, more))
}

// newCoverage is a coverage of cuts in any order and of more, which may be empty.
func newCoverage(cuts []uint64, more moreCoverage) *coverage {
	slices.Sort(cuts)
	c := &coverage{cuts: make([]atomic.Uint64, len(cuts))}
	for i, v := range cuts {
		c.cuts[i].Store(v)
	}
	return c.withMore(func(m *moreCoverage) { *m = more })
}

func popCount(set []uint64) int {
	n := 0
	for _, w := range set {
		n += bits.OnesCount64(w)
	}
	return n
}

// eachBit calls f for every holder of a set.
func eachBit(set []uint64, f func(Holder)) {
	for i, w := range set {
		for ; w != 0; w &= w - 1 {
			f(Holder(i*64 + bits.TrailingZeros64(w)))
		}
	}
}
