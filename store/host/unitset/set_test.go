package unitset

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// What the tree finds is what a list has that is searched from its beginning.
func TestUnitsAreFoundWhereTheyAre(t *testing.T) {
	g := seed.Random(t, 0)
	for _, n := range []int{1, 6, 63, 64, 65, 200, 1000} {
		s := New(n)
		taken := make([]bool, n)
		for range 400 {
			first := g.IntN(n)
			count, in := 1+g.IntN(min(40, n-first)), g.IntN(2) == 0
			s.Set(first, count, in)
			for u := first; u < first+count; u++ {
				taken[u] = in
			}
			if g.IntN(3) == 0 {
				continue // several changes between two searches
			}
			for _, run := range []int{1, 2, 1 + g.IntN(100)} {
				want := lowestRun(taken, run)
				if got := s.Without(run); got != want {
					t.Fatalf("%d units: the set has a gap of %d at %d, want %d", n, run, got, want)
				}
			}
		}
	}
}

func lowestRun(taken []bool, n int) int {
	run := 0
	for u := range taken {
		if run++; taken[u] {
			run = 0
		}
		if run == n {
			return u - n + 1
		}
	}
	return -1
}
