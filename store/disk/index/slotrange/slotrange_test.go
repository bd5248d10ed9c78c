package slotrange

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/store/hashtable"
)

func TestRunsAreTakenAndGivenBack(t *testing.T) {
	const slots = 1000
	random := rand.New(rand.NewPCG(1, 1))
	l := List{{0, slots}}
	var taken []Range
	for range 10000 {
		if n := random.Uint32N(40) + 1; random.IntN(2) == 0 {
			if base, ok := l.Take(n); ok {
				taken = append(taken, Range{base, n})
			}
		} else if len(taken) > 0 {
			i := random.IntN(len(taken))
			l.Give(taken[i])
			taken = slices.Delete(taken, i, i+1)
		}
		all := append(slices.Clone(taken), l...)
		slices.SortFunc(all, func(a, b Range) int { return int(a.Base) - int(b.Base) })
		at := hashtable.Ref(0)
		for _, r := range all {
			if r.Base != at || r.Slots == 0 {
				t.Fatalf("%+v begins at %d", r, at)
			}
			at = r.End()
		}
		if at != slots {
			t.Fatalf("%d slots", at)
		}
		for i := 1; i < len(l); i++ {
			if l[i-1].End() >= l[i].Base {
				t.Fatalf("%v touch or are in disorder", l)
			}
		}
	}
	for _, r := range taken {
		l.Give(r)
	}
	if end := l.Trim(slots); end != 0 || len(l) != 0 {
		t.Errorf("%v, %d", l, end)
	}
	if end := l.Trim(7); end != 7 {
		t.Error(end)
	}
}
