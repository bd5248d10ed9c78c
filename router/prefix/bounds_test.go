package prefix

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestCopiesThatAreCountedAreBounded(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("a million copies")
	}
	w := newWorkers(t, 1)
	w.stored(0, 0, 10)
	copies := make(map[place]uint32, maxCopies)
	for i := range maxCopies {
		copies[place(i)<<offsetBits|1<<60] = 1 // of runs that there are not
	}
	w.Index.holders[w.holders[0]].copies = copies
	w.stored(0, 5, 6)
	if len(copies) != maxCopies {
		t.Errorf("%d copies are counted", len(copies))
	}
	w.Removed(w.holders[0], w.p.ids[5:6]) // a hit missed, none invented
	w.Walk(w.view, w.p.keys, w.out)
	if w.out[0].GPU != 5 {
		t.Errorf("%+v", w.out[0])
	}
}

func TestPredictionsAreBounded(t *testing.T) {
	w := newWorkers(t, 1)
	gone := new(run)
	for range maxPredictions {
		w.expiry.Push(expiry{deadline: 5, run: gone})
	}
	predict := func(want int32) {
		t.Helper()
		if _, err := w.Predict(w.holders[0], w.p.keys[:100], time.Unix(0, 100)); err != nil {
			t.Fatal(err)
		}
		w.Walk(w.view, w.p.keys, w.out)
		if w.out[0].GPU != want {
			t.Errorf("%+v, want %d blocks", w.out[0], want)
		}
	}
	predict(0)
	w.Expire(time.Unix(0, 5))
	predict(100)
}

// Long runs that have become short ones take the memory of short ones.
func TestWhatIsTrimmedGivesMemoryBack(t *testing.T) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 1), 4000)
	h := mustAdd(t, x, "e")
	p.report(t, x, h, 0, 100, 100)
	few := x.Stats().Bytes
	p.report(t, x, h, 100, 4000, 100)
	many := x.Stats().Bytes
	x.Removed(h, p.ids[100:])
	if left := x.Stats().Bytes; left > 3*few || left > many/10 {
		t.Errorf("%d bytes for 100 blocks, %d for 4,000, %d when all but 100 are gone", few, many, left)
	}
	x.check(t)
}

func TestManyShortPromptsLeaveNothingBehind(t *testing.T) {
	x := newIndex(t)
	h := mustAdd(t, x, "e")
	before := x.Stats().Bytes
	p := randomPrompt(seed.Random(t, 1), 20_000)
	for i := range p.keys {
		if err := x.Stored(h, 0, false, p.ids[i:i+1], p.keys[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	many := x.Stats().Bytes
	x.Removed(h, p.ids)
	if left := x.Stats().Bytes; left > before+many/20 {
		t.Errorf("%d bytes at first, %d with 20,000 prompts, %d without them", before, many, left)
	}
	x.check(t)
}

// The names of the last engine of its kind go with it, also those of blocks that others have.
func TestTheNamesOfADomainGoWithItsLastHolder(t *testing.T) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 1), 1000)
	p.report(t, x, mustAdd(t, x, "a"), 0, 1000, 100)
	before := x.Stats().Bytes
	for i := range p.ids {
		p.ids[i]++
	}
	h := mustAdd(t, x, "b")
	p.report(t, x, h, 0, 1000, 100)
	x.RemoveHolder(h)
	if after := x.Stats().Bytes; after > before+1000 {
		t.Errorf("%d bytes, before %d", after, before)
	}
	x.check(t)
}

// A holder's list of runs follows what it has, not what it ever had.
func TestBlocksThatComeAndGoLeaveNoTraceInTheirHolder(t *testing.T) {
	w := newWorkers(t, 2)
	w.stored(0, 0, 10) // so that the run stays
	for range 10_000 {
		w.stored(1, 0, 10)
		w.removed(1, 0, 10)
	}
	if n := len(w.Index.holders[w.holders[1]].runs); n > 2*minCompact {
		t.Errorf("%d runs are listed for a holder of none", n)
	}
}

func TestOfRunsUnusedForAsLongTheOneOfFewerHoldersGoes(t *testing.T) {
	x := newIndex(t)
	holders, _ := gpuRanks(t, x, 3)
	rng := seed.Random(t, 1)
	popular, lonely := randomPrompt(rng, 10), randomPrompt(rng, 10)
	for _, h := range holders {
		popular.report(t, x, h, 0, 10, 10)
	}
	lonely.report(t, x, holders[0], 0, 10, 10)
	a, b := x.heads.find(&popular.keys[0]), x.heads.find(&lonely.keys[0])
	if a.seen.Store(b.seen.Load()); x.lessUseful(a, b) || !x.lessUseful(b, a) {
		t.Error("what three hold goes before what one holds")
	}
}

func TestEvictionIsRememberedUntilTheHolderIsCleared(t *testing.T) {
	x, err := New(Options{MaxBlocks: 100})
	if err != nil {
		t.Fatal(err)
	}
	holders, _ := gpuRanks(t, x, 2)
	rng := seed.Random(t, 1)
	first, second := randomPrompt(rng, 50), randomPrompt(rng, 100)
	first.report(t, x, holders[0], 0, 50, 10)
	if x.Evicted(holders[0]) || x.Evicted(99) {
		t.Error("evicted, while there is room")
	}
	second.report(t, x, holders[1], 0, 100, 10)
	if !x.Evicted(holders[0]) {
		t.Error("100 blocks of 150 are kept, and nothing was evicted")
	}
	x.Clear(holders[0])
	if x.Evicted(holders[0]) {
		t.Error("still, after it was cleared")
	}
}
