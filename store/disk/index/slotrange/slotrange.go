// Package slotrange has runs of slots, and lists of them.
package slotrange

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/store/hashtable"
)

// Range is a run of slots.
type Range struct {
	Base  hashtable.Ref
	Slots uint32
}

// End is one past the last slot.
func (r Range) End() hashtable.Ref { return r.Base + hashtable.Ref(r.Slots) }

// List has runs that do not touch each other, in order.
type List []Range

// Take takes a run of that many slots out. It reports false if there is none.
func (l *List) Take(slots uint32) (base hashtable.Ref, ok bool) {
	s := *l
	for i, f := range s {
		if f.Slots >= slots {
			s[i] = Range{f.Base + hashtable.Ref(slots), f.Slots - slots}
			if s[i].Slots == 0 {
				*l = slices.Delete(s, i, i+1)
			}
			return f.Base, true
		}
	}
	return 0, false
}

// Give puts a run in.
func (l *List) Give(r Range) {
	s := *l
	i, _ := slices.BinarySearchFunc(s, r.Base, func(r Range, base hashtable.Ref) int { return cmp.Compare(r.Base, base) })
	s = slices.Insert(s, i, r)
	if i+1 < len(s) && r.End() == s[i+1].Base {
		s[i].Slots += s[i+1].Slots
		s = slices.Delete(s, i+1, i+2)
	}
	if i > 0 && s[i-1].End() == s[i].Base {
		s[i-1].Slots += s[i].Slots
		s = slices.Delete(s, i, i+1)
	}
	*l = s
}

// Trim takes the last run out if it ends at limit, and returns where it begins, or else limit.
func (l *List) Trim(limit hashtable.Ref) hashtable.Ref {
	if s := *l; len(s) > 0 && s[len(s)-1].End() == limit {
		limit = s[len(s)-1].Base
		*l = s[:len(s)-1]
	}
	return limit
}
