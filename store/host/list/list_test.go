package list

import (
	"slices"
	"testing"
)

type thing struct {
	n    int
	node Node[thing]
}

func content(l *List[thing]) (all []int) {
	for n := l.Head(); n != nil; n = n.Next() {
		all = append(all, n.Of().n)
	}
	return all
}

func TestList(t *testing.T) {
	var l List[thing]
	things := make([]thing, 4)
	for i := range things {
		things[i].n = i
	}
	if l.First() != nil || l.Head() != nil {
		t.Error("an empty list has a first node")
	}
	for i := range 3 {
		l.Push(&things[i].node, &things[i])
	}
	l.PushFront(&things[3].node, &things[3])
	if got := content(&l); !slices.Equal(got, []int{3, 0, 1, 2}) || l.Len() != 4 || l.First() != &things[3] {
		t.Errorf("%v", got)
	}
	for _, i := range []int{1, 3, 2, 0} { // in the middle, at the front, at the end, the last
		l.Remove(&things[i].node)
		if slices.Contains(content(&l), i) {
			t.Errorf("%d is still there", i)
		}
	}
	if l.Len() != 0 || l.First() != nil {
		t.Errorf("%v is left", content(&l))
	}
	l.PushFront(&things[0].node, &things[0])
	l.Push(&things[1].node, &things[1])
	if got := content(&l); !slices.Equal(got, []int{0, 1}) {
		t.Errorf("%v", got)
	}
}
