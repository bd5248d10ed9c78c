package victim

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/store/hashtable"
)

func TestTheColdestAreSelected(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 5, 9, 10, 11, 100, 5000} {
		const want = 10
		all, s, few := make([]Victim, n), NewSelection(want), Coldest(nil)
		for i := range all {
			all[i] = Victim{Ref: hashtable.Ref(i), Order: random.Uint64N(1000)<<16 + uint64(i)}
			s.Offer(all[i])
			few.Offer(all[i], want)
		}
		slices.SortFunc(all, Compare)
		all = all[:min(n, want)]
		if got := s.Sorted(); !slices.Equal(got, all) {
			t.Errorf("of %d: %v, want %v", n, got, all)
		}
		slices.SortFunc(few, Compare)
		if !slices.Equal([]Victim(few), all) {
			t.Errorf("of %d: %v, want %v", n, few, all)
		}
	}
}
