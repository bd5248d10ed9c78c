package coverage

import (
	"math/bits"
	"sync/atomic"
)

// Bitmap says which blocks of a run a holder with holes has. The writer changes bits in
// place, one word at a time, while walks read them.
type Bitmap struct {
	words []atomic.Uint64
	// count is how many bits are set. Only the writer looks at it.
	count uint32
}

func newBitmap(blocks uint32) *Bitmap {
	return &Bitmap{words: make([]atomic.Uint64, (blocks+63)/64)}
}

// resized is a copy with room for a number of blocks, at least as many as before.
func (b *Bitmap) resized(blocks uint32) *Bitmap {
	g := newBitmap(blocks)
	for i := range b.words {
		g.words[i].Store(b.words[i].Load())
	}
	g.count = b.count
	return g
}

func (b *Bitmap) size() uint32 { return uint32(len(b.words)) * 64 }

func (b *Bitmap) has(i uint32) bool {
	return i < b.size() && b.words[i/64].Load()>>(i%64)&1 != 0
}

// set sets or clears the bits [from, to), which the bitmap must have room for, and returns
// how many it changed.
func (b *Bitmap) set(from, to uint32, on bool) (changed uint32) {
	for from < to {
		word, low := from/64, from%64
		n := min(64-low, to-from)
		mask := ^uint64(0) >> (64 - n) << low
		old := b.words[word].Load()
		now := old &^ mask
		if on {
			now = old | mask
		}
		changed += uint32(bits.OnesCount64(old ^ now))
		b.words[word].Store(now)
		from += n
	}
	if on {
		b.count += changed
	} else {
		b.count -= changed
	}
	return changed
}

// Stretch says whether block i is there, and up to which block that stays so. Nothing is
// there beyond the bitmap, up to [MaxBlocks].
func (b *Bitmap) Stretch(i uint32) (there bool, end uint32) {
	if i >= b.size() {
		return false, MaxBlocks
	}
	there = b.has(i)
	for word := i / 64; word < uint32(len(b.words)); word++ {
		w := b.words[word].Load()
		if there {
			w = ^w
		}
		if word == i/64 {
			w &= ^uint64(0) << (i % 64)
		}
		if w != 0 {
			return there, word*64 + uint32(bits.TrailingZeros64(w))
		}
	}
	if there {
		return true, b.size()
	}
	return false, MaxBlocks
}

func (b *Bitmap) prefix() uint32 {
	if there, end := b.Stretch(0); there {
		return end
	}
	return 0
}

// last is one more than the highest bit that is set.
func (b *Bitmap) last() uint32 {
	for i := len(b.words) - 1; i >= 0; i-- {
		if w := b.words[i].Load(); w != 0 {
			return uint32(i*64 + bits.Len64(w))
		}
	}
	return 0
}

// Holder is the ordinal of something that has blocks.
type Holder uint32

// Set is a set of holders, a bit for each.
type Set []uint64

// Has says whether a holder is in the set.
func (s Set) Has(h Holder) bool { return int(h/64) < len(s) && s[h/64]>>(h%64)&1 != 0 }

func (s Set) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

func (s Set) each(f func(Holder)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(Holder(i*64 + bits.TrailingZeros64(w)))
		}
	}
}

func (s Set) meets(other Set) bool {
	for i := range min(len(s), len(other)) {
		if s[i]&other[i] != 0 {
			return true
		}
	}
	return false
}
