package host

import "math/bits"

// freeUnits finds runs of unassigned units: a tree over the units of which each node knows
// the longest runs at its ends and anywhere in it.
type freeUnits struct {
	size  int // leaves, a power of two
	nodes []freeRun
}

type freeRun struct{ front, back, best uint32 }

// newFreeUnits has n units, all free.
func newFreeUnits(n int) freeUnits {
	f := freeUnits{size: 1}
	for f.size < n {
		f.size *= 2
	}
	f.nodes = make([]freeRun, 2*f.size)
	f.set(0, n, true)
	return f
}

// set makes the units [first, first+n) free, or not.
func (f *freeUnits) set(first, n int, free bool) {
	var leaf freeRun
	if free {
		leaf = freeRun{1, 1, 1}
	}
	low, high := first+f.size, first+n-1+f.size
	for i := low; i <= high; i++ {
		f.nodes[i] = leaf
	}
	width := uint32(1) // units below each child
	for low, high = low/2, high/2; low > 0; low, high, width = low/2, high/2, 2*width {
		for i := low; i <= high; i++ {
			l, r := &f.nodes[2*i], &f.nodes[2*i+1]
			n := freeRun{front: l.front, back: r.back, best: max(l.best, r.best, l.back+r.front)}
			if l.front == width {
				n.front += r.front
			}
			if r.back == width {
				n.back += l.back
			}
			f.nodes[i] = n
		}
	}
}

// find returns the start of the lowest run of n free units, or -1.
func (f *freeUnits) find(n int) int {
	want := uint32(n)
	if f.nodes[1].best < want {
		return -1
	}
	at, first, width := 1, 0, f.size
	for at < f.size {
		l, r := &f.nodes[2*at], &f.nodes[2*at+1]
		width /= 2
		switch {
		case l.best >= want:
			at = 2 * at
		case l.back+r.front >= want:
			return first + width - int(l.back)
		default:
			at, first = 2*at+1, first+width
		}
	}
	return first
}

// unitSet is a set of units.
type unitSet []uint64

// newUnitSet has the units from n on in it, as far as there are bits for them.
func newUnitSet(n int) unitSet {
	s := make(unitSet, (n+63)/64)
	if n%64 > 0 {
		s[len(s)-1] = ^uint64(0) << (n % 64)
	}
	return s
}

func (s unitSet) has(unit int) bool { return s[unit/64]>>(unit%64)&1 != 0 }

func (s unitSet) set(first, n int, in bool) {
	for u := first; u < first+n; u++ {
		if in {
			s[u/64] |= 1 << (u % 64)
		} else {
			s[u/64] &^= 1 << (u % 64)
		}
	}
}

// without returns the start of the lowest run of n units that are not in the set, or -1. It
// looks at 64 units at a time: eight thousand words for a terabyte.
func (s unitSet) without(n int) int {
	run := 0 // length of the run that ends before the word
	for i, w := range s {
		if w == 0 {
			if run += 64; run >= n {
				return 64*i + 64 - run
			}
			continue
		}
		for at := 0; at < 64; {
			gap := min(bits.TrailingZeros64(w>>at), 64-at)
			if run += gap; run >= n {
				return 64*i + at + gap - run
			}
			if at += gap; at < 64 {
				run = 0
				at += bits.TrailingZeros64(^(w >> at))
			}
		}
	}
	return -1
}
