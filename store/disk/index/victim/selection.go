package victim

import "slices"

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
