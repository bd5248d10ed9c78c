// Package unitset finds runs of units that are not in a set: free memory, however large the
// memory is.
package unitset

import "math/bits"

// Set is a set of units. It has a bit for each unit, and a tree over words of 64 bits. Each node
// knows the longest runs of units that are not in the set: at both ends of its words, and
// anywhere in them. A change touches the bits alone; the next search brings the tree up to date, so
// that a change costs a step for each level at most, and most cost none. It is not safe for
// concurrent use.
type Set struct {
	words []uint64
	size  int // leaves of the tree, a power of two
	nodes []gap
	// stale are the words that changed since the tree was brought up to date, each once.
	stale   []uint32
	isStale []bool
}

// gap is the longest run of units that are not in the set, at both ends and anywhere.
type gap struct{ front, back, best uint32 }

const wordUnits = 64

// New returns an empty set of units 0 to n-1.
func New(n int) Set {
	words := (n + wordUnits - 1) / wordUnits
	s := Set{words: make([]uint64, words), size: 1, stale: make([]uint32, 0, words), isStale: make([]bool, words)}
	for s.size < words {
		s.size *= 2
	}
	s.nodes = make([]gap, 2*s.size)
	for w := range s.words {
		s.touch(w)
	}
	if n%wordUnits > 0 {
		s.words[words-1] = ^uint64(0) << (n % wordUnits)
	}
	return s
}

// Has reports whether a unit is in the set.
func (s *Set) Has(unit int) bool { return s.words[unit/wordUnits]>>(unit%wordUnits)&1 != 0 }

func (s *Set) touch(word int) {
	if !s.isStale[word] {
		s.isStale[word] = true
		s.stale = append(s.stale, uint32(word))
	}
}

// Set makes the units [first, first+n) ones of the set, or not.
func (s *Set) Set(first, n int, in bool) {
	for u := first; u < first+n; u++ {
		w, bit := u/wordUnits, uint64(1)<<(u%wordUnits)
		if s.words[w]&bit != 0 == in {
			continue
		}
		s.words[w] ^= bit
		s.touch(w)
	}
}

// gapOf looks at one word.
func gapOf(w uint64) gap {
	g := gap{front: uint32(bits.TrailingZeros64(w)), back: uint32(bits.LeadingZeros64(w))}
	for x := ^w; x != 0; x &= x << 1 {
		g.best++
	}
	return g
}

// refresh brings the tree up to date.
func (s *Set) refresh() {
	for _, w := range s.stale {
		s.isStale[w] = false
		at, width := s.size+int(w), uint32(wordUnits)
		s.nodes[at] = gapOf(s.words[w])
		for at /= 2; at > 0; at, width = at/2, 2*width {
			l, r := &s.nodes[2*at], &s.nodes[2*at+1]
			g := gap{front: l.front, back: r.back, best: max(l.best, r.best, l.back+r.front)}
			if l.front == width {
				g.front += r.front
			}
			if r.back == width {
				g.back += l.back
			}
			if g == s.nodes[at] {
				break
			}
			s.nodes[at] = g
		}
	}
	s.stale = s.stale[:0]
}

// Without returns the start of the lowest run of n units that are not in the set, or -1.
func (s *Set) Without(n int) int {
	s.refresh()
	want := uint32(n)
	if s.nodes[1].best < want {
		return -1
	}
	at, first, width := 1, 0, s.size*wordUnits
	for at < s.size {
		l, r := &s.nodes[2*at], &s.nodes[2*at+1]
		width /= 2
		switch {
		case l.best >= want:
			at *= 2
		case l.back+r.front >= want:
			return first + width - int(l.back)
		default:
			at, first = 2*at+1, first+width
		}
	}
	w := s.words[at-s.size]
	for from := 0; ; {
		run := min(bits.TrailingZeros64(w>>from), wordUnits-from)
		if run >= n {
			return first + from
		}
		from += run
		from += bits.TrailingZeros64(^(w >> from))
	}
}
