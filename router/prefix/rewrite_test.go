package prefix

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// tails are two prompts with a common head whose tails take turns at the same place of one run.
func tails(rng *rand.Rand, head, tail int) (a, b prompt) {
	a = randomPrompt(rng, head+tail)
	b = randomPrompt(rng, head+tail)
	copy(b.tokens, a.tokens[:16*head])
	b.keys = new(connector.KeyHasher).Append(nil, connector.Key{}, b.tokens, 16)
	copy(b.ids, a.ids[:head])
	return a, b
}

// What a walk has read of a run must stay true of the blocks it read, whatever takes their place.
func TestWhatAWalkHasReadNeverSpeaksOfOtherBlocks(t *testing.T) {
	for name, tail := range map[string]int{"a short tail": 20, "a tail that memory is given back for": 100} {
		t.Run(name, func(t *testing.T) {
			const head = 20
			a, b := tails(seed.Random(t, 5), head, tail)
			x := newIndex(t)
			first, second, holey := mustAdd(t, x, "e"), mustAdd(t, x, "e"), mustAdd(t, x, "e")
			a.report(t, x, first, 0, head+tail, head)
			a.report(t, x, second, 0, head, head)
			a.report(t, x, holey, 0, head, head)
			x.Removed(holey, a.ids[3:4])
			seen := x.heads.find(&a.keys[0])
			c := seen.cover.Load() // beside keys that go on with a's tail
			x.Removed(first, a.ids[head:])
			b.report(t, x, second, head, head+tail, tail)
			b.report(t, x, holey, head, head+tail, tail)
			if x.heads.find(&a.keys[0]) != seen || seen.len() != uint32(head+tail) {
				t.Fatal("the other tail is elsewhere, so that this test shows nothing")
			}
			for off := uint32(head); off < uint32(head+tail); off++ {
				if c.Has(second, off) || c.Has(holey, off) {
					t.Fatalf("block %d of one tail is held by who has the other", off)
				}
			}
			x.check(t)
		})
	}
}

// The same with real walks beside a writer: nobody ever has both tails.
func TestWalksBesideARewrittenTailInventNoHit(t *testing.T) {
	const head, tail = 30, 90
	a, b := tails(seed.Random(t, 6), head, tail)
	x := newIndex(t)
	first, second := mustAdd(t, x, "e"), mustAdd(t, x, "e")
	view, err := NewRanks([]Rank{{GPU: first, HasGPU: true}, {GPU: second, HasGPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	a.report(t, x, first, 0, head, head)
	a.report(t, x, second, 0, head, head)
	var stop atomic.Bool
	var walks atomic.Int64
	var readers sync.WaitGroup
	for reader := range 2 {
		readers.Go(func() {
			out := make([]Result, 2)
			var s Scratch
			for !stop.Load() {
				if reader == 0 {
					x.Walk(view, a.keys, out)
				} else {
					x.WalkTokens(view, testRoot, a.tokens, 16, &s, out)
				}
				if walks.Add(1); out[1].GPU > head {
					t.Errorf("%d blocks of a prompt, although it has %d", out[1].GPU, head)
					return
				}
			}
		})
	}
	rounds := 500
	if testing.Short() || raceEnabled {
		rounds = 50
	}
	for round := 0; (round < rounds || walks.Load() < 100) && !t.Failed(); round++ {
		a.report(t, x, first, head, head+tail, tail)
		runtime.Gosched()
		x.Removed(first, a.ids[head:])
		b.report(t, x, second, head, head+tail, tail)
		x.Removed(second, b.ids[head:])
	}
	stop.Store(true)
	readers.Wait()
	x.check(t)
}

// Predictions refer to runs until they expire. Those must not keep what was evicted.
func TestDroppedRunsKeepNoMemory(t *testing.T) {
	x := newIndex(t)
	h := mustAdd(t, x, "e")
	p := randomPrompt(seed.Random(t, 7), 3*maxRun)
	if _, err := x.Predict(h, p.keys, time.Unix(1000, 0)); err != nil {
		t.Fatal(err)
	}
	x.Clear(h)
	if n := len(x.expiry); n != 3 {
		t.Fatalf("%d predictions wait for their deadline", n)
	}
	for _, e := range x.expiry {
		if r := e.run; cap(r.keys.Load().keys) != 0 || r.parent != nil || len(r.cover.Load().Cuts) != 0 || r.named != nil {
			t.Errorf("a dropped run holds %d keys", cap(r.keys.Load().keys))
		}
	}
	if n := x.Expire(time.Unix(1000, 0)); n != 3 {
		t.Errorf("%d expired", n)
	}
	x.check(t)
}
