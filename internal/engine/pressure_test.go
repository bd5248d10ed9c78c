package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestConversationsUnderPressureGiveTheSameTokensInEveryVariant(t *testing.T) {
	if testing.Short() {
		t.Skip("tokens are compared in the full run; races of the same code show in shorter ones")
	}
	system, local := prompt(20, 70), 0
	eachVariant(t, func(t *testing.T, change func(*Options)) {
		r := seed.Random(t, 0)
		store := newStore()
		loaded, preemptions := 0, 0
		for round := range 3 {
			e := newEngine(t, change, func(o *Options) {
				o.Blocks, o.MaxSeqs, o.MaxBatchedTokens, o.PrefixCaching = 12*len(o.Model.Groups())+2+r.IntN(8), 4+r.IntN(3), 20+r.IntN(60), true
				o.DivergentHits, o.PartialReuse = round == 1, round == 2
			})
			f := newFake(t, e, store)
			f.polls = 1 + r.IntN(4)
			if e.opts.Order == VLLM && !e.opts.Overlap {
				f.fail = func(id string, _, i int) bool { return (len(id)+i+round)%7 == 0 }
			}
			var requests []Request
			for i := range 6 {
				p := append(slices.Clone(system), prompt(uint64(30+i/2), 10*(round+i))...)
				requests = append(requests, Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: 1 + r.IntN(20), Scope: connector.Scope{Salt: fmt.Sprint(i % 2)}})
			}
			for i, got := range run(t, e, requests...) {
				check(t, got, alone(t, requests[i], change, func(o *Options) { o.RankCommand, o.Overlap = nil, false }))
				loaded += got.CachedTokens
				local += got.LocalCachedTokens
				preemptions += got.Preemptions
			}
			if len(f.requests) != 0 {
				t.Errorf("%d requests were never reported as finished", len(f.requests))
			}
		}
		// TensorRT-LLM's order waits for room for a whole request.
		var o Options
		if change(&o); loaded == 0 || (preemptions == 0 && o.Order == VLLM) {
			t.Errorf("%d tokens loaded, %d preemptions: the test does not test it", loaded, preemptions)
		}
	})
	if local == 0 {
		t.Error("no tokens of the engine's own: the test does not test it")
	}
}

func TestPartialReuseComputesTheLastTokenOnACopy(t *testing.T) {
	for _, change := range []func(*Options){nil, func(o *Options) { o.Model = model.TinyHybrid(7) }} {
		q := Request{ID: "a", Prompt: prompt(8, 144), MaxTokens: generated}
		e := newEngine(t, change, func(o *Options) { o.PrefixCaching, o.PartialReuse = true, true })
		f := newFake(t, e, filled(t, q, change))
		want := alone(t, q, change)
		check(t, run(t, e, q)[0], want)
		f.logged = true
		for _, id := range []string{"b", "c"} {
			q.ID = id
			r := run(t, e, q)[0]
			check(t, r, want)
			if r.LocalCachedTokens != 143 || !slices.Contains(f.calls, fmt.Sprintf("match %s computed 143: 0", id)) {
				t.Errorf("%d tokens local, calls %q", r.LocalCachedTokens, f.calls)
			}
		}
	}
}

func TestLayersWithFullAttentionUseWhatTheyKnowBeyondTheOthers(t *testing.T) {
	hybrid := func(o *Options) { o.Model = model.TinyHybrid(7) }
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	store := filled(t, q, hybrid)
	e := newEngine(t, hybrid, func(o *Options) { o.PrefixCaching, o.DivergentHits = true, true })
	f := newFake(t, e, store)
	check(t, run(t, e, q)[0], alone(t, q, hybrid))
	// The windows are gone, the full attention's blocks are not.
	for c, b := range e.pool.cached {
		if e.groups[c.group].Window > 0 {
			delete(e.pool.cached, c)
			e.pool.contents[b] = content{}
		}
	}
	groups := map[int]int{}
	f.tamper = func(_ int, b fakeBlock, data []byte) []byte {
		groups[b.Group]++
		return data
	}
	q.ID = "b"
	r := run(t, e, q)[0]
	check(t, r, alone(t, q, hybrid))
	if groups[0] == 0 || groups[1] == 0 || groups[2] != 0 {
		t.Errorf("blocks loaded by group: %v, want none of group 2", groups)
	}
}

func TestResetForgetsEverythingAndTellsTheConnector(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated, NoLoad: true}
	e := newEngine(t, func(o *Options) { o.PrefixCaching = true })
	f := newFake(t, e, newStore())
	want := run(t, e, q)[0].Tokens
	e.Reset(t.Context())
	r := run(t, e, q)[0]
	check(t, r, want)
	if r.LocalCachedTokens != 0 || f.resets != 1 {
		t.Errorf("%d tokens local after %d resets", r.LocalCachedTokens, f.resets)
	}
}

func TestRequestsThatOptOutAreNeitherLoadedNorSaved(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated, NoSave: true}
	store := newStore()
	e := newEngine(t)
	newFake(t, e, store)
	run(t, e, q)
	if len(store.m) != 0 {
		t.Errorf("%d blocks were saved", len(store.m))
	}
	q.NoSave, q.NoLoad = false, true
	run(t, e, q)
	if r := run(t, e, q)[0]; r.CachedTokens != 0 || len(store.m) == 0 {
		t.Errorf("%d tokens loaded, %d blocks saved", r.CachedTokens, len(store.m))
	}
}

func TestModelsInOneProcessDoNotMix(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	other := func(o *Options) { o.Model.Name, o.Model.Seed = "other", 8 }
	a, b := newEngine(t), newEngine(t, other)
	ma, mb := a.Manifest(), b.Manifest()
	if ma.Digest() == mb.Digest() {
		t.Error("two models have one namespace")
	}
	check(t, run(t, a, q)[0], alone(t, q))
	check(t, run(t, b, q)[0], alone(t, q, other))
}
