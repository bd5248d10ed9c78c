package feed

import (
	"slices"

	"github.com/kvconn/kvconn/router/event"
)

// groups knows which cache groups of a rank are full attention, since removals do not say. If there are several,
// an engine needs a block in each of them. So the first group's blocks count, and a removal from any of them
// takes one. That misses a hit if an engine drops a block from one group after another, and invents none.
type groups [maxGroups]event.SpecKind

// maxGroups is how many groups are told apart; higher ones are not full attention.
const maxGroups = 256

// stored reports whether the blocks of a stored event count as prefix entries. If no event says what kind it
// is, group 0 is full attention: engines put it first.
func (g *groups) stored(group int, kind event.SpecKind) bool {
	if group < 0 || group >= maxGroups {
		return group < 0 && kind != event.SpecOther
	}
	if kind != event.SpecAbsent {
		g[group] = kind
	}
	return g.removed(group) && !slices.Contains(g[:group], event.SpecFull)
}

// removed reports whether the removals of a group's blocks count.
func (g *groups) removed(group int) bool {
	if group < 0 || group >= maxGroups {
		return group < 0
	}
	return g[group] == event.SpecFull || group == 0 && g[0] == event.SpecAbsent
}
