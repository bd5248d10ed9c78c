package prefix

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestBoundEvictsWhatIsLeastUseful(t *testing.T) {
	x, err := New(Options{MaxBlocks: 20_000})
	if err != nil {
		t.Fatal(err)
	}
	holders, view := gpuRanks(t, x, 4)
	rng := seed.Random(t, 1)
	walked, shared := randomPrompt(rng, 1000), randomPrompt(rng, 1000)
	walked.report(t, x, holders[0], 0, 1000, 32)
	out := make([]Result, 4)
	for i := range 500 {
		p := randomPrompt(rng, 200)
		p.report(t, x, holders[i%4], 0, 200, 32)
		x.Walk(view, walked.keys, out)
		if i == 400 {
			for _, h := range holders {
				shared.report(t, x, h, 0, 1000, 32)
			}
		}
		if s := x.Stats(); s.Blocks > 20_000 {
			t.Fatalf("%d blocks", s.Blocks)
		}
	}
	x.check(t)
	if x.Walk(view, walked.keys, out); out[0].GPU != 1000 {
		t.Errorf("a prompt walked all the time was evicted to %d blocks", out[0].GPU)
	}
	if s := x.Stats(); s.EvictedBlocks == 0 || s.Blocks < 15_000 {
		t.Errorf("%+v", s)
	}
}

func TestBytesAreBounded(t *testing.T) {
	const maxBytes = 2 << 20
	x, err := New(Options{MaxBytes: maxBytes})
	if err != nil {
		t.Fatal(err)
	}
	holders, _ := gpuRanks(t, x, 2)
	rng := seed.Random(t, 1)
	for i := range 3000 {
		p := randomPrompt(rng, 1+rng.IntN(100))
		p.report(t, x, holders[i%2], 0, len(p.keys), 32)
		if s := x.Stats(); s.Bytes > maxBytes {
			t.Fatalf("%d bytes", s.Bytes)
		}
	}
	x.check(t)
	if s := x.Stats(); s.Bytes < maxBytes/2 || s.EvictedBlocks == 0 {
		t.Errorf("%+v", s)
	}
}

// What is only predicted is all that is known of an engine without events: the blocks that an eviction
// keeps stay predicted, those of a run that others hang at above all.
func TestEvictionKeepsThePredictionsOfWhatItKeeps(t *testing.T) {
	x := newIndex(t)
	holders, view := gpuRanks(t, x, 1)
	rng := seed.Random(t, 1)
	a, b := randomPrompt(rng, 200), randomPrompt(rng, 150)
	copy(b.tokens, a.tokens[:16*100])
	b.keys = new(connector.KeyHasher).Append(nil, connector.Key{}, b.tokens, 16)
	deadline := time.Unix(10, 0)
	for _, p := range []*prompt{&a, &b} {
		if _, err := x.Predict(holders[0], p.keys, deadline); err != nil {
			t.Fatal(err)
		}
	}
	x.mu.Lock()
	x.cutTail(x.heads.find(&a.keys[0]), 120) // as evict does
	x.trim(x.heads.find(&a.keys[0]))
	x.mu.Unlock()
	x.check(t)
	out := make([]Result, 1)
	for _, c := range []struct {
		p    *prompt
		want int32
	}{{&a, 120}, {&b, 150}} {
		if x.Walk(view, c.p.keys, out); out[0].GPU != c.want {
			t.Errorf("%d blocks are left, want %d", out[0].GPU, c.want)
		}
	}
	x.Expire(deadline)
	if s := x.Stats(); s.Blocks != 0 || s.Predicted != 0 {
		t.Errorf("expired: %+v", s)
	}
}

// An index that had to forget says less than the model, never more.
func TestRandomOperationsInABoundedIndexNeverInventAHit(t *testing.T) {
	steps := randomSteps() / 2
	m := newModel(t, 5, 1500, true, Options{MaxBlocks: 600})
	m.bounded = true
	for i := range steps {
		m.step(true)
		if s := m.x.Stats(); s.Blocks > 600 {
			t.Fatalf("%d blocks", s.Blocks)
		}
		if i%(steps/10) == 0 {
			m.x.check(t)
		}
	}
	for _, h := range m.holders {
		m.clear(h)
	}
	m.x.check(t)
	if s := m.x.Stats(); s.EvictedBlocks == 0 || s.Blocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPredictedBlocksCountUntilTheyExpire(t *testing.T) {
	w := newWorkers(t, 2)
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	predict := func(worker, blocks int, deadline int64) {
		t.Helper()
		if _, err := w.Predict(w.holders[worker], w.p.keys[:blocks], at(deadline)); err != nil {
			t.Fatal(err)
		}
	}
	predict(0, 5000, 10)
	w.want(5000, 0)
	predict(0, 300, 20) // shorter, but longer to live
	predict(1, 100, 5)
	w.stored(0, 0, 200)
	w.stored(0, 200, 210)
	w.removed(0, 100, 101)
	w.want(5000, 100)
	if n := w.Expire(at(5)); n != 1 {
		t.Errorf("%d expired", n)
	}
	w.want(5000, 0)
	w.Expire(at(10))
	w.want(300, 0)
	w.Expire(at(30))
	w.want(100, 0) // what events said, with its hole
	if s := w.Stats(); s.Predicted != 0 || s.Blocks != 210 || s.Held != 209 {
		t.Errorf("%+v", s)
	}
	predict(1, 8000, 50)
	w.stored(0, 100, 101)
	w.want(210, 8000)
	w.Clear(w.holders[1])
	w.want(210, 0)
	if w.Expire(at(60)); w.Stats().Blocks != 210 {
		t.Errorf("%+v", w.Stats())
	}
	if _, err := w.Predict(99, w.p.keys, at(1)); err == nil {
		t.Error("a prediction for nobody was taken")
	}
}
