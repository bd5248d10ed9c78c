// Package victim has records that may be evicted, and the order in which they go.
package victim

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/store/hashtable"
)

// Victim is a candidate for eviction. Those with the least Order go first.
type Victim struct {
	Ref   hashtable.Ref
	Seq   uint64
	Order uint64
}

// depthBits are the bits of an order that are not of the tick.
const depthBits = 16

// Order is the place of a record in the order of eviction: least recently used first, and of a chain used at one time its
// end first.
func Order(tick uint64, depth uint16) uint64 { return tick<<depthBits | uint64(1<<depthBits-1-depth) }

// Tick is the tick of a victim's last use.
func (v Victim) Tick() uint64 { return v.Order >> depthBits }

// Compare sorts victims.
func Compare(a, b Victim) int {
	return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Ref, b.Ref))
}

// Coldest holds the coldest records seen, the warmest of them first.
type Coldest []Victim

// Offer adds a record if fewer than want are held, or in the place of a warmer one.
func (c *Coldest) Offer(v Victim, want int) {
	s := *c
	if len(s) >= want && v.Order >= s[0].Order {
		return // as most are
	}
	at, _ := slices.BinarySearchFunc(s, v, func(a, b Victim) int { return cmp.Compare(b.Order, a.Order) })
	switch {
	case len(s) < want:
		*c = slices.Insert(s, at, v)
	case at > 0:
		copy(s, s[1:at])
		s[at-1] = v
	}
}
