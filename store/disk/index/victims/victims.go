// Package victims is which of many records are the first to be evicted.
package victims

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/store/hashtable"
)

// Victim is a candidate for eviction.
type Victim struct {
	Ref   hashtable.Ref
	Seq   uint64
	Order uint64 // its place in the order of eviction: the tick of its last use, and 16 bits of its depth
}

// Tick is the tick of a victim's last use.
func (v Victim) Tick() uint64 { return v.Order >> 16 }

// Compare compares victims by the order of eviction.
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

// Selection holds the coldest records seen where that may be many: it sorts them now and then.
type Selection struct {
	want  int
	list  []Victim
	worst uint64 // of those that are sure to be enough; 0 if they are not
}

// NewSelection returns a selection of at most want records, which is positive.
func NewSelection(want int) *Selection { return &Selection{want: want} }

// Offer adds a record if it may be one of the coldest.
func (s *Selection) Offer(v Victim) {
	if s.worst != 0 && v.Order >= s.worst {
		return
	}
	if s.list = append(s.list, v); len(s.list) >= 2*s.want {
		s.Sorted()
		s.worst = s.list[len(s.list)-1].Order
	}
}

// Sorted returns what was selected, the coldest first.
func (s *Selection) Sorted() []Victim {
	slices.SortFunc(s.list, Compare)
	s.list = s.list[:min(len(s.list), s.want)]
	return s.list
}
