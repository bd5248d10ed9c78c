package disk

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// Segments are given up at any moment, some of them with a record that is held, while two sizes are
// saved and read and the journal fails now and then: every slot is accounted for afterwards, and both
// sizes can be saved.
func TestSegmentsAreGivenUpAtAnyMoment(t *testing.T) {
	first := seed.Of(t)
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	o.MaxBytes, o.SlotWait = 12<<20, 20*time.Millisecond
	s := watchCap(t, o).of(openTest(t, o))
	a, b := openNamespace(t, s, "a"), openNamespace(t, s, "b")
	var saving, disturbing sync.WaitGroup
	stop := make(chan struct{})
	disturb := func(number uint64, f func(g *rand.Rand)) {
		g := rand.New(rand.NewPCG(first, number))
		disturbing.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(g.IntN(3000)) * time.Microsecond):
					f(g)
				}
			}
		})
	}
	disturb(1, func(g *rand.Rand) {
		if all := s.space.AllSegments(); len(all) > 0 {
			s.reclaim.Retire(all[g.IntN(len(all))], nil)
			s.reclaim.WakeShrinker()
		}
	})
	disturb(2, func(g *rand.Rand) {
		ref := index.Ref(g.IntN(1 + int(s.table.Limit())))
		if s.space.At(ref) == nil {
			return
		}
		if _, _, ok := s.table.PinSlot(ref); ok {
			time.AfterFunc(time.Duration(g.IntN(300))*time.Millisecond, func() { s.table.Unpin(ref) })
		}
	})
	disturb(3, func(g *rand.Rand) {
		if g.IntN(50) == 0 {
			s.journal.Abandon("test")
		}
	})
	for worker := range 4 {
		saving.Go(func() {
			for chain := range 25 {
				_ = writeAll(t, s, chainOf(a, 1000*worker+chain, 8))
				_ = writeAll(t, s, ofSize(b, 1000*worker+chain, 4, otherPayload))
				for _, err := range readAll(t, s, chainOf(a, 1000*worker+chain/2, 8)) {
					if err != nil && !errors.Is(err, store.ErrGone) {
						t.Error(err)
					}
				}
			}
		})
	}
	saving.Wait()
	close(stop)
	disturbing.Wait()
	awaitJournal(t, s, 0)
	for chain := range 5 {
		writeUntilDone(t, s, chainOf(a, 9000+chain, 20))
		writeUntilDone(t, s, ofSize(b, 9000+chain, 10, otherPayload))
	}
	settle(t, s)
	checkAccounting(t, s)
	mustBalance(t, s)
}
