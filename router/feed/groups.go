package feed

import (
	"math/bits"

	"github.com/kvconn/kvconn/router/event"
)

// groups knows which cache groups of a rank are full attention, since removals do not say. If there are several,
// an engine needs a block in each of them. So the first group's blocks count, and a removal from any of them
// takes one. That misses a hit if an engine drops a block from one group after another, and invents none.
type groups struct {
	full, other [maxGroups / 64]uint64 // bitsets
}

// maxGroups is how many groups are told apart; higher ones are not full attention.
const maxGroups = 256

// stored reports whether the blocks of a stored event count as prefix entries. If no event says what kind it
// is, group 0 is full attention: engines put it first.
func (g *groups) stored(group int, kind event.SpecKind) bool {
	if group < 0 || group >= maxGroups {
		return group < 0 && kind != event.SpecOther
	}
	word, bit := group/64, uint64(1)<<(group%64)
	switch kind {
	case event.SpecFull:
		g.full[word] |= bit
		g.other[word] &^= bit
	case event.SpecOther:
		g.other[word] |= bit
		g.full[word] &^= bit
	}
	return g.removed(group) && group <= g.first()
}

// first is the first group that is known to be full attention, maxGroups if none is.
func (g *groups) first() int {
	for i, word := range g.full {
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word)
		}
	}
	return maxGroups
}

// removed reports whether the removals of a group's blocks count.
func (g *groups) removed(group int) bool {
	if group < 0 || group >= maxGroups {
		return group < 0
	}
	word, bit := group/64, uint64(1)<<(group%64)
	return g.full[word]&bit != 0 || group == 0 && g.other[word]&bit == 0
}
