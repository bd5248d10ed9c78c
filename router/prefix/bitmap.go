package prefix

import (
	"math/bits"
	"sync/atomic"
)

// bitmap says which blocks of a run a holder with holes has. The writer sets and clears
// bits in place, one word at a time; walks read them beside it.
type bitmap struct {
	words []atomic.Uint64
	// count is how many bits are set. Only the writer looks at it.
	count uint32
}

func newBitmap(blocks uint32) *bitmap {
	return &bitmap{words: make([]atomic.Uint64, (blocks+63)/64)}
}

// grown is a copy with room for blocks and some more.
func (b *bitmap) grown(blocks uint32) *bitmap {
	return b.copyTo(newBitmap(min(max(blocks, uint32(len(b.words))*96), maxRun)))
}

func (b *bitmap) clone() *bitmap { return b.copyTo(newBitmap(b.size())) }

// copyTo makes g, which is empty and at least as large, equal to b.
func (b *bitmap) copyTo(g *bitmap) *bitmap {
	for i := range b.words {
		g.words[i].Store(b.words[i].Load())
	}
	g.count = b.count
	return g
}

// firstBlocks is a copy of which only the first n bits are set.
func (b *bitmap) firstBlocks(n uint32) *bitmap {
	c := newBitmap(max(n, 1))
	for i := uint32(0); i < n; {
		set, end := b.runEnd(i)
		if set {
			c.set(i, min(end, n))
		}
		i = end
	}
	return c
}

func (b *bitmap) size() uint32 { return uint32(len(b.words)) * 64 }

func (b *bitmap) has(i uint32) bool {
	return i < b.size() && b.words[i/64].Load()>>(i%64)&1 != 0
}

// set sets the bits [from, to), which the bitmap must have room for.
func (b *bitmap) set(from, to uint32) {
	for from < to {
		word, low := from/64, from%64
		n := min(64-low, to-from)
		mask := ^uint64(0) >> (64 - n) << low
		old := b.words[word].Load()
		b.count += uint32(bits.OnesCount64(mask &^ old))
		b.words[word].Store(old | mask)
		from += n
	}
}

// clear clears one bit.
func (b *bitmap) clear(i uint32) {
	old := b.words[i/64].Load()
	b.count -= uint32(old >> (i % 64) & 1)
	b.words[i/64].Store(old &^ (1 << (i % 64)))
}

// runEnd is the end of the stretch of equal bits that i is in, and what they are. Beyond
// the bitmap all is clear, up to maxRun.
func (b *bitmap) runEnd(i uint32) (set bool, end uint32) {
	if i >= b.size() {
		return false, maxRun
	}
	set = b.has(i)
	for word := i / 64; word < uint32(len(b.words)); word++ {
		w := b.words[word].Load()
		if set {
			w = ^w
		}
		if word == i/64 {
			w &= ^uint64(0) << (i % 64)
		}
		if w != 0 {
			return set, word*64 + uint32(bits.TrailingZeros64(w))
		}
	}
	if set {
		return true, b.size()
	}
	return false, maxRun
}

// prefix is how many bits are set from the first on.
func (b *bitmap) prefix() uint32 {
	set, end := b.runEnd(0)
	if !set {
		return 0
	}
	return end
}

// last is one more than the highest bit that is set.
func (b *bitmap) last() uint32 {
	for i := len(b.words) - 1; i >= 0; i-- {
		if w := b.words[i].Load(); w != 0 {
			return uint32(i*64 + bits.Len64(w))
		}
	}
	return 0
}
