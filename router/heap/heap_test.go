package heap

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

type number int

func (n number) Before(m number) bool { return n < m }

func TestItemsComeOutSorted(t *testing.T) {
	rng := seed.Random(t, 1)
	var h Heap[number]
	var want []number
	for range 10_000 {
		if n := number(rng.IntN(1000)); len(h) == 0 || rng.IntN(5) < 3 {
			h.Push(n)
			at, _ := slices.BinarySearch(want, n)
			want = slices.Insert(want, at, n)
			continue
		}
		if h[0] != want[0] {
			t.Fatalf("%d is first, want %d", h[0], want[0])
		}
		if got := h.Pop(); got != want[0] {
			t.Fatalf("%d came out, want %d", got, want[0])
		}
		want = want[1:]
	}
	if len(h) != len(want) {
		t.Errorf("%d items, want %d", len(h), len(want))
	}
}
