package index

import (
	"cmp"
	"slices"
)

// scanRun is how many entries a scan looks at under one hold of the lock.
const scanRun = 4096

// Range is a run of slots.
type Range struct {
	Base  Ref
	Slots uint32
}

// Coldest chooses up to want records in the ranges that are not pinned, in eviction
// order. One pass over entries that lie side by side replaces a linked list with two
// references in every entry and a lock that every lookup would take. The pass gives way
// to writers after each few thousand entries.
func (t *Table) Coldest(ranges []Range, want int) []Victim {
	heap := make(coldHeap, 0, want)
	for _, r := range ranges {
		for from := uint32(0); from < r.Slots; from += scanRun {
			t.scan(r.Base+Ref(from), min(scanRun, r.Slots-from), want, &heap)
		}
	}
	slices.SortFunc(heap, func(a, b Victim) int { return cmp.Compare(a.order, b.order) })
	return heap
}

func (t *Table) scan(base Ref, slots uint32, want int, heap *coldHeap) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return
	}
	for ref := base; ref < base+Ref(slots); ref++ {
		e := t.entry(ref)
		if e.seq == 0 || e.pins() > 0 {
			continue
		}
		heap.offer(Victim{Ref: ref, Seq: e.seq, order: e.order()}, want)
	}
}

// coldHeap holds the coldest records seen, the warmest of them on top.
type coldHeap []Victim

func (h *coldHeap) offer(v Victim, want int) {
	s := *h
	switch {
	case len(s) < want:
		s = append(s, v)
		s.up(len(s) - 1)
		*h = s
	case want > 0 && v.order < s[0].order:
		s[0] = v
		s.down(0)
	}
}

func (h coldHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if h[p].order >= h[i].order {
			return
		}
		h[p], h[i] = h[i], h[p]
		i = p
	}
}

func (h coldHeap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1].order > h[c].order {
			c++
		}
		if h[c].order <= h[i].order {
			return
		}
		h[c], h[i] = h[i], h[c]
		i = c
	}
}
