package prefix

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// A broken store may report any keys after any parents: the index may be wrong about them, but must stay
// whole.
func TestKeysThatAreNotChainedBreakNothing(t *testing.T) {
	base := seed.Of(t)
	for number := range uint64(40) {
		rng := rand.New(rand.NewPCG(base, number))
		x, err := New(Options{MaxBlocks: 20 + rng.IntN(300)})
		if err != nil {
			t.Fatal(err)
		}
		var holders []Holder
		var ranks []Rank
		for i := range 6 {
			domain := "e"
			if i%2 == 0 {
				domain = KeyDomain
			}
			h := mustAdd(t, x, domain)
			holders = append(holders, h)
			ranks = append(ranks, Rank{Disks: []Holder{h}})
		}
		view, err := NewRanks(ranks)
		if err != nil {
			t.Fatal(err)
		}
		values := 1 + rng.IntN(200)
		id := func() uint64 { return uint64(rng.IntN(values)) | uint64(rng.IntN(2))<<8 } // half of them as keys name blocks
		list := func() (keys []connector.Key, ids []uint64) {
			for range 1 + rng.IntN(30) {
				k := connector.Key{byte(rng.IntN(values)), 1}
				keys, ids = append(keys, k), append(ids, id())
			}
			return keys, ids
		}
		out := make([]Result, len(ranks))
		for i := range 3000 {
			h := holders[rng.IntN(len(holders))]
			keys, ids := list()
			switch rng.IntN(8) {
			case 0, 1, 2:
				err := x.Stored(h, id(), rng.IntN(3) > 0, ids, keys)
				if err != nil && !errors.Is(err, ErrUnknownParent) && !errors.Is(err, ErrChain) {
					t.Fatal(err)
				}
			case 3, 4:
				x.Removed(h, ids)
			case 5:
				_, _ = x.Predict(h, keys, time.Unix(0, int64(i+rng.IntN(50))))
			case 6:
				x.Walk(view, keys, out)
			default:
				if x.Expire(time.Unix(0, int64(i))); rng.IntN(20) == 0 {
					x.Clear(h)
				}
			}
		}
		for _, h := range holders {
			x.RemoveHolder(h)
		}
		if s := x.Stats(); s.Blocks != 0 || s.Runs != 0 || s.Held != 0 {
			t.Errorf("number %d: %+v", number, s)
		}
	}
}
