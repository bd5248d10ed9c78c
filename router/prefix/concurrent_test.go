package prefix

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// Walks run beside a writer that changes everything around what they look at. The answers
// that can be told beforehand must be right in every walk.
func TestWalksBesideAWriterAreSound(t *testing.T) {
	const blocks, event = 5000, 50
	x := newIndex(t)
	rng := seed.Random(t, 1)
	p := randomPrompt(rng, blocks)
	steady, flapping, holey := mustAdd(t, x, "e"), mustAdd(t, x, "e"), mustAdd(t, x, "e")
	disk := mustAdd(t, x, "e")
	p.report(t, x, steady, 0, blocks, event)
	p.report(t, x, disk, 0, blocks, event)
	p.report(t, x, holey, 0, blocks, event)
	view, err := NewRanks([]Rank{
		{GPU: steady, HasGPU: true}, {GPU: flapping, HasGPU: true},
		{GPU: flapping, HasGPU: true, Disks: []Holder{disk}}, {GPU: holey, HasGPU: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var walks atomic.Int64
	var readers sync.WaitGroup
	for reader := range 2 {
		readers.Go(func() {
			out := make([]Result, 4)
			var s Scratch
			for !stop.Load() {
				if reader == 0 {
					x.Walk(view, p.keys, out)
				} else {
					x.WalkTokens(view, testRoot, p.tokens, 16, &s, out)
				}
				walks.Add(1)
				full := Result{GPU: blocks, Usable: blocks, FromGPU: blocks}
				if out[0] != full {
					t.Errorf("what nobody changes: %+v", out[0])
					return
				}
				// A store is seen as a whole within a run.
				if n := out[1].GPU; n > blocks || n%event != 0 && n != maxRun {
					t.Errorf("a holder of whole events has %d blocks", n)
					return
				}
				if r := out[2]; r.Usable != blocks || r.FromGPU+r.FromDisk != blocks {
					t.Errorf("the disk has all: %+v", r)
					return
				}
				if n := out[3].GPU; n != blocks && n != 100 && n != 4500 {
					t.Errorf("blocks 100 and 4500 come and go: %d", n)
					return
				}
			}
		})
	}
	rounds := 200
	if testing.Short() || raceEnabled {
		rounds = 15
	}
	for round := 0; round < rounds || walks.Load() < 20; round++ {
		churn(t, x, &p, rng, flapping, holey, event)
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	readers.Wait()
	x.check(t)
}

// churn stores and removes a prompt for a holder, makes and heals holes for another, and
// lets forks, predictions and tails come and go.
func churn(t *testing.T, x *Index, p *prompt, rng *rand.Rand, flapping, holey Holder, event int) {
	blocks := len(p.keys)
	p.report(t, x, flapping, 0, blocks, event)
	for _, at := range []int{100, 4500} {
		x.Removed(holey, p.ids[at:at+1])
		p.report(t, x, holey, at, at+1, 1)
	}
	at := 1 + rng.IntN(blocks-1)
	fork := randomPrompt(rng, 300)
	fork.keys = new(connector.KeyHasher).Append(nil, p.keys[at-1], fork.tokens, 16)
	if err := x.Stored(flapping, p.ids[at-1], true, fork.ids, fork.keys); err != nil {
		t.Error(err)
	}
	if _, err := x.Predict(holey, p.keys[:50], time.Unix(1, 0)); err != nil {
		t.Error(err)
	}
	x.Removed(flapping, fork.ids[100:])
	x.Expire(time.Unix(2, 0))
	if rng.IntN(2) == 0 {
		x.Removed(flapping, fork.ids[:100])
		for to := blocks; to > 0; to -= event {
			x.Removed(flapping, p.ids[to-event:to])
		}
	} else {
		x.Clear(flapping)
	}
}

// A holder whose last block of a run comes and goes while walks look at the run has nothing of the run
// that hangs there.
func TestABlockThatGoesDuringAWalkEndsThePrefixThere(t *testing.T) {
	const ranks, head, tail = 1000, 70, 100
	rng := seed.Random(t, 2)
	x := newIndex(t)
	holders, view := gpuRanks(t, x, ranks)
	p, fork := randomPrompt(rng, head+2), randomPrompt(rng, head+tail)
	copy(fork.tokens, p.tokens[:16*head])
	copy(fork.ids, p.ids[:head])
	fork.keys = new(connector.KeyHasher).Append(nil, connector.Key{}, fork.tokens, 16)
	for _, h := range holders { // all have a hole after the fork, so that a walk takes some time over the run
		p.report(t, x, h, 0, head+2, head+2)
		x.Removed(h, p.ids[head:head+1])
	}
	fork.report(t, x, holders[ranks-1], head, head+tail, tail)
	var stop atomic.Bool
	var reader sync.WaitGroup
	reader.Go(func() {
		out := make([]Result, ranks)
		for !stop.Load() {
			x.Walk(view, fork.keys, out)
			if n := out[0].GPU; n != head && n != head-1 {
				t.Errorf("%d blocks of a prompt that it has the first %d of", n, head)
				return
			}
		}
	})
	rounds := 100_000
	if testing.Short() || raceEnabled {
		rounds = 2000
	}
	for range rounds {
		x.Removed(holders[0], p.ids[head-1:head])
		p.report(t, x, holders[0], head-1, head, 1)
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	reader.Wait()
}
