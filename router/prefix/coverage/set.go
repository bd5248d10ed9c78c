package coverage

import "math/bits"

// Holder is the ordinal of something that has blocks.
type Holder uint32

// Set is a set of holders, a bit for each.
type Set []uint64

// Has says whether a holder is in the set.
func (s Set) Has(h Holder) bool { return int(h/64) < len(s) && s[h/64]>>(h%64)&1 != 0 }

// count is how many holders are in the set.
func (s Set) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// each calls f for every holder of the set.
func (s Set) each(f func(Holder)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(Holder(i*64 + bits.TrailingZeros64(w)))
		}
	}
}

// meets says whether a holder is in both sets.
func (s Set) meets(other Set) bool {
	for i := range min(len(s), len(other)) {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}
