package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

const generated = 24

// prompt returns tokens that only depend on the seed.
func prompt(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 11))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(r.IntN(256))
	}
	return tokens
}

// alone returns a request's tokens from an engine that serves nothing else, computes the
// prompt in one step and caches nothing.
func alone(t *testing.T, q Request) []uint32 {
	t.Helper()
	e := newEngine(t, func(o *Options) { o.MaxBatchedTokens = 4096 })
	return run(t, e, q)[0].Tokens
}

func check(t *testing.T, got Result, want []uint32) {
	t.Helper()
	if !slices.Equal(got.Tokens, want) {
		t.Errorf("request %s (%d local, %d loaded, %d recomputed, %d preemptions): tokens\n%v, want\n%v", got.ID,
			got.LocalCachedTokens, got.CachedTokens, got.RecomputedTokens, got.Preemptions, got.Tokens, want)
	}
}

// filled returns a store that holds the blocks of a prompt and its tokens.
func filled(t *testing.T, q Request) fakeStore {
	t.Helper()
	e := newEngine(t, nil)
	store := fakeStore{}
	newFake(t, e, store)
	run(t, e, q)
	return store
}

func bothPrefixCachings(t *testing.T, test func(t *testing.T, caching bool)) {
	for _, caching := range []bool{false, true} {
		t.Run(fmt.Sprintf("prefix caching %t", caching), func(t *testing.T) { test(t, caching) })
	}
}

func TestTokensDoNotDependOnTheBudgetOfAStep(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(1, 130), MaxTokens: generated}
	want := alone(t, q)
	for _, budget := range []int{1, 7, 16, 33, 100, 129, 130, 131} {
		e := newEngine(t, func(o *Options) { o.MaxBatchedTokens = budget })
		check(t, run(t, e, q)[0], want)
	}
}

func TestTokensDoNotDependOnOtherRequests(t *testing.T) {
	bothPrefixCachings(t, func(t *testing.T, caching bool) {
		var requests []Request
		for i := range 12 {
			p := append(prompt(2, 16*i), prompt(uint64(100+i), 5+i)...)
			requests = append(requests, Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: 10 + i})
		}
		// 20 blocks of 16 tokens do not hold six: requests lose their blocks.
		e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.MaxSeqs, o.Blocks, o.PrefixCaching = 50, 6, 21, caching })
		results := run(t, e, requests...)
		preemptions, hits := 0, 0
		for i, r := range results {
			check(t, r, alone(t, requests[i]))
			preemptions += r.Preemptions
			hits += r.LocalCachedTokens
		}
		if preemptions == 0 {
			t.Error("nothing was preempted: the test does not test it")
		}
		if caching != (hits > 0) {
			t.Errorf("%d tokens from the engine's own cache", hits)
		}
	})
}

func TestPrefixCacheKeepsScopesApart(t *testing.T) {
	e := newEngine(t, func(o *Options) { o.PrefixCaching = true })
	p := prompt(3, 100)
	for i, x := range []struct {
		scope connector.Scope
		want  int
	}{{connector.Scope{}, 0}, {connector.Scope{}, 96}, {connector.Scope{Salt: "x"}, 0}, {connector.Scope{LoRA: "x"}, 0}, {connector.Scope{Salt: "x"}, 96}} {
		r := run(t, e, Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: 2, Scope: x.scope})[0]
		if r.LocalCachedTokens != x.want {
			t.Errorf("run %d: %d tokens cached, want %d", i, r.LocalCachedTokens, x.want)
		}
	}
}

func TestLoadedPrefixesOfEveryLengthGiveTheSameTokens(t *testing.T) {
	bothPrefixCachings(t, func(t *testing.T, caching bool) {
		for _, length := range []int{129, 144} {
			q := Request{ID: "a", Prompt: prompt(4, length), MaxTokens: generated}
			want := alone(t, q)
			store := filled(t, q)
			for offer := range (length-1)/16 + 1 {
				e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.PrefixCaching = 40, caching })
				f := newFake(t, e, store)
				f.maxOffer, f.polls = offer, 1+offer%3
				r := run(t, e, q)[0]
				check(t, r, want)
				if r.CachedTokens != 16*offer {
					t.Errorf("%d tokens loaded, want %d", r.CachedTokens, 16*offer)
				}
			}
		}
	})
}

func TestLoadsContinueTheEnginesOwnHit(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(5, 150), MaxTokens: generated}
	want := alone(t, q)
	store := filled(t, q)
	for local := range 9 {
		e := newEngine(t, func(o *Options) { o.PrefixCaching = true })
		f := newFake(t, e, store)
		run(t, e, Request{ID: "head", Prompt: q.Prompt[:16*local+1], MaxTokens: 1, NoLoad: true, NoSave: true})
		f.fail = func(_ string, i int) bool { return i == 1 && local%2 == 1 }
		r := run(t, e, q)[0]
		check(t, r, want)
		loaded, recomputed := 16*(9-local), 0
		if local%2 == 1 && local < 8 {
			loaded, recomputed = 16, loaded-16
		}
		if r.LocalCachedTokens != 16*local || r.CachedTokens != loaded || r.RecomputedTokens != recomputed {
			t.Errorf("%d blocks known: %d local, %d loaded, %d recomputed", local, r.LocalCachedTokens, r.CachedTokens, r.RecomputedTokens)
		}
	}
}

func TestFailureOfAnyBlockIsRecomputed(t *testing.T) {
	bothPrefixCachings(t, func(t *testing.T, caching bool) {
		q := Request{ID: "a", Prompt: prompt(6, 150), MaxTokens: generated}
		want := alone(t, q)
		store := filled(t, q)
		for bad := range 9 {
			e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.PrefixCaching = 40, caching })
			f := newFake(t, e, store)
			f.fail = func(_ string, i int) bool { return i == bad || i == bad+3 }
			r := run(t, e, q)[0]
			check(t, r, want)
			if r.CachedTokens != 16*bad || r.RecomputedTokens != 16*(9-bad) {
				t.Errorf("block %d failed: %d tokens loaded, %d recomputed", bad, r.CachedTokens, r.RecomputedTokens)
			}
			if caching {
				q := q
				q.ID = "b"
				r := run(t, e, q)[0]
				check(t, r, want)
				if r.LocalCachedTokens != 144 {
					t.Errorf("block %d failed: afterwards %d tokens in the engine's cache", bad, r.LocalCachedTokens)
				}
			}
		}
	})
}

func TestLoadThatFailsWhollyIsMatchedAgainAndComputed(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(7, 150), MaxTokens: generated}
	store := filled(t, q)
	e := newEngine(t, nil)
	f := newFake(t, e, store)
	f.logged = true
	f.fail = func(string, int) bool { return true }
	check(t, run(t, e, q)[0], alone(t, q))
	want := []string{"match a computed 0: 144", "match a computed 0: 0"}
	if got := matches(f.calls); !slices.Equal(got, want) {
		t.Errorf("matches %q, want %q", got, want)
	}
}

func matches(calls []string) []string {
	return slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.HasPrefix(c, "match") })
}

func TestConnectorThatOffersFailedBlocksForEverEndsTheRun(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(7, 150), MaxTokens: 1}
	e := newEngine(t, nil)
	f := newFake(t, e, filled(t, q))
	f.forgetful = true
	f.fail = func(string, int) bool { return true }
	if _, err := e.Run(t.Context(), []Request{q}); err == nil || !strings.Contains(err.Error(), "does not learn") {
		t.Errorf("error %v", err)
	}
}

func TestWrongBytesInAnyLoadedBlockGiveOtherTokens(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(8, 150), MaxTokens: generated}
	want := alone(t, q)
	store := filled(t, q)
	other := Request{ID: "other", Prompt: prompt(9, 150), MaxTokens: 1}
	strange := filled(t, other)
	e := newEngine(t, nil)
	right := e.chainOf(q)
	wrong := e.chainOf(other)
	for bad := range right {
		for name, data := range map[string][]byte{
			"zeros":          make([]byte, len(store[right[bad]])),
			"another prompt": strange[wrong[bad]],
			"its neighbour":  store[right[(bad+1)%len(right)]],
		} {
			kept := store[right[bad]]
			store[right[bad]] = data
			e := newEngine(t, nil)
			newFake(t, e, store)
			if r := run(t, e, q)[0]; slices.Equal(r.Tokens, want) {
				t.Errorf("block %d with the bytes of %s: tokens are the same", bad, name)
			}
			store[right[bad]] = kept
		}
	}
}

// chainOf returns the keys of a prompt's loadable blocks.
func (e *Engine) chainOf(q Request) []connector.Key {
	r := &request{Request: q, tokens: q.Prompt}
	return r.chain((len(q.Prompt)-1)/e.opts.BlockSize, e.opts.BlockSize)
}

func TestConversationsUnderPressureGiveTheSameTokens(t *testing.T) {
	bothPrefixCachings(t, func(t *testing.T, caching bool) {
		r := rand.New(rand.NewPCG(12, 12))
		store := fakeStore{}
		system := prompt(20, 70)
		loaded, recomputed, preemptions := 0, 0, 0
		for round := range 4 {
			e := newEngine(t, func(o *Options) {
				o.Blocks, o.MaxSeqs, o.MaxBatchedTokens, o.PrefixCaching = 22+r.IntN(40), 1+r.IntN(5), 10+r.IntN(60), caching
			})
			f := newFake(t, e, store)
			f.polls = 1 + r.IntN(4)
			f.fail = func(string, int) bool { return r.IntN(10) == 0 }
			var requests []Request
			for i := range 8 {
				p := append(slices.Clone(system), prompt(uint64(30+i), 10*(round+i))...)
				requests = append(requests, Request{ID: fmt.Sprint(i), Prompt: p, MaxTokens: 1 + r.IntN(30)})
			}
			for i, got := range run(t, e, requests...) {
				check(t, got, alone(t, requests[i]))
				loaded += got.CachedTokens
				recomputed += got.RecomputedTokens
				preemptions += got.Preemptions
			}
			if len(f.requests) != 0 {
				t.Errorf("%d requests were never reported as finished", len(f.requests))
			}
		}
		if loaded == 0 || recomputed == 0 || preemptions == 0 {
			t.Errorf("%d tokens loaded, %d recomputed, %d preemptions: the test does not test it", loaded, recomputed, preemptions)
		}
	})
}

func TestAbortDuringLoadKeepsTheBlocksUntilTheLoadEnds(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(13, 150), MaxTokens: generated}
	next := Request{ID: "b", Prompt: prompt(14, 150), MaxTokens: generated}
	e := newEngine(t, nil)
	f := newFake(t, e, filled(t, q))
	f.polls = 50
	if err := e.Submit(q); err != nil {
		t.Fatal(err)
	}
	step(t, e)
	if !e.Abort("a") || e.Abort("a") {
		t.Fatal("a request can be aborted once")
	}
	if err := e.Submit(q); err == nil {
		t.Error("the id of a request whose load is in flight was accepted again")
	}
	ended := step(t, e)
	if len(ended) != 1 || !ended[0].Aborted {
		t.Fatalf("ended: %+v", ended)
	}
	if held := e.opts.Blocks - 1 - e.pool.free; held != 9 {
		t.Errorf("%d blocks are held while the load is in flight, want 9", held)
	}
	// run checks that all blocks are free at the end.
	check(t, run(t, e, next)[0], alone(t, next))
}

func step(t *testing.T, e *Engine) []Result {
	t.Helper()
	ended, _, err := e.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func TestAbortOfARunningRequestFreesItsBlocks(t *testing.T) {
	e := newEngine(t, nil)
	newFake(t, e, fakeStore{})
	for _, id := range []string{"a", "b"} {
		if err := e.Submit(Request{ID: id, Prompt: prompt(15, 300), MaxTokens: 5}); err != nil {
			t.Fatal(err)
		}
	}
	step(t, e)
	e.Abort("a")
	e.Abort("b")
	run(t, e)
}

func TestEndOfTheContextAbortsEverything(t *testing.T) {
	e := newEngine(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.Run(ctx, []Request{{ID: "a", Prompt: prompt(15, 300), MaxTokens: 5}}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	run(t, e)
}

func TestConnectorIsCalledInVLLMsOrder(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(16, 70), MaxTokens: 12}
	e := newEngine(t, func(o *Options) { o.MaxBatchedTokens, o.PrefixCaching = 40, true })
	f := newFake(t, e, fakeStore{})
	f.logged = true
	run(t, e, Request{ID: "cold", Prompt: q.Prompt, MaxTokens: 2})
	// Another engine on the same store; the last block of the load fails.
	e = newEngine(t, func(o *Options) { o.MaxBatchedTokens = 40 })
	g := newFake(t, e, f.store)
	g.logged = true
	g.fail = func(_ string, i int) bool { return i == 3 }
	run(t, e, q)
	got := strings.Join(append(f.calls, g.calls[:15]...), "\n")
	want := `match cold computed 0: 0
step preempted [] finished []
  alloc cold computed 0 external 0
  scheduled cold reset true computed 0 count 40
save 2
step preempted [] finished []
  scheduled cold reset false computed 40 count 30
save 2
step preempted [] finished []
  scheduled cold reset false computed 70 count 1
step preempted [] finished [cold]
match a computed 0: 64
step preempted [] finished []
  alloc a computed 0 external 64
load
step preempted [] finished []
poll 1
loaded [a] invalid blocks 1
step preempted [] finished []
  alloc a computed 48 external 0
  scheduled a reset true computed 48 count 22
step preempted [] finished []
  scheduled a reset false computed 70 count 1
step preempted [] finished []
  scheduled a reset false computed 71 count 1
step preempted [] finished []`
	if got != want {
		t.Errorf("calls\n%s\nwant\n%s", got, want)
	}
}

// brokenConnector is a fakeConnector that breaks one rule.
type brokenConnector struct {
	*fakeConnector
	match func(connector.Offer) connector.Offer
	step  func(connector.StepReply) connector.StepReply
	poll  func([]connector.FinishedLoad) []connector.FinishedLoad
}

func (b *brokenConnector) Match(ctx context.Context, m *connector.MatchRequest) connector.Offer {
	return b.match(b.fakeConnector.Match(ctx, m))
}

func (b *brokenConnector) Step(ctx context.Context, m *connector.StepRequest) connector.StepReply {
	return b.step(b.fakeConnector.Step(ctx, m))
}

func (b *brokenConnector) Poll(ctx context.Context) []connector.FinishedLoad {
	return b.poll(b.fakeConnector.Poll(ctx))
}

func TestConnectorThatBreaksTheContractEndsTheRun(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(17, 64), MaxTokens: 3}
	store := filled(t, q)
	for name, x := range map[string]struct {
		breakIt func(b *brokenConnector)
		want    string
	}{
		"offer of the last token": {func(b *brokenConnector) {
			b.match = func(connector.Offer) connector.Offer { return connector.Offer{Tokens: 64, Async: true} }
		}, "offers 64 tokens"},
		"offer without a load": {func(b *brokenConnector) {
			b.step = func(r connector.StepReply) connector.StepReply { return connector.StepReply{Metadata: r.Metadata} }
		}, "load planned: false"},
		"load that ends twice": {func(b *brokenConnector) {
			b.poll = func(l []connector.FinishedLoad) []connector.FinishedLoad { return append(l, l...) }
		}, "none in flight"},
		"failure of somebody else's block": {func(b *brokenConnector) {
			b.poll = func(l []connector.FinishedLoad) []connector.FinishedLoad {
				for i := range l {
					l[i].FailedBlocks = []uint32{77}
				}
				return l
			}
		}, "block 77"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, nil)
			b := &brokenConnector{
				fakeConnector: newFake(t, e, store),
				match:         func(o connector.Offer) connector.Offer { return o },
				step:          func(r connector.StepReply) connector.StepReply { return r },
				poll:          func(l []connector.FinishedLoad) []connector.FinishedLoad { return l },
			}
			x.breakIt(b)
			e.Attach(b, b)
			if _, err := e.Run(t.Context(), []Request{q}); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("error %v, want one with %q", err, x.want)
			}
		})
	}
}

func TestDeclaredLayoutAndManifestAreValid(t *testing.T) {
	e := newEngine(t, nil)
	info, err := e.File().Stat()
	if err != nil {
		t.Fatal(err)
	}
	layout, manifest := e.Layout(), e.Manifest()
	if err := layout.Validate([]int64{info.Size()}); err != nil {
		t.Error(err)
	}
	if want := info.Size() / int64(e.opts.Blocks); int64(layout.BlockBytes()) != want {
		t.Errorf("a block has %d bytes, want %d", layout.BlockBytes(), want)
	}
	if err := manifest.Validate(); err != nil {
		t.Error(err)
	}
}

func TestRequestThatCannotBeServedIsRefused(t *testing.T) {
	e := newEngine(t, func(o *Options) { o.Blocks = 11 })
	for name, q := range map[string]Request{
		"no id":           {Prompt: []uint32{1}, MaxTokens: 1},
		"no prompt":       {ID: "a", MaxTokens: 1},
		"no tokens":       {ID: "a", Prompt: []uint32{1}},
		"strange token":   {ID: "a", Prompt: []uint32{256}, MaxTokens: 1},
		"too many tokens": {ID: "a", Prompt: prompt(1, 150), MaxTokens: 11},
	} {
		if e.Submit(q) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := e.Submit(Request{ID: "a", Prompt: prompt(1, 150), MaxTokens: 10}); err != nil {
		t.Error(err)
	}
	if e.Submit(Request{ID: "a", Prompt: prompt(1, 1), MaxTokens: 1}) == nil {
		t.Error("same id: accepted")
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"block size": func(o *Options) { o.BlockSize = -1 },
		"blocks":     func(o *Options) { o.Blocks = 1 },
		"budget":     func(o *Options) { o.MaxBatchedTokens = -1 },
		"sequences":  func(o *Options) { o.MaxSeqs = -1 },
		"model":      func(o *Options) { o.Model.Layers = 0 },
	} {
		o := Options{Model: newEngine(t, nil).opts.Model}
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTextSurvivesItsTokens(t *testing.T) {
	const text = "Grüße, \x00\xff!"
	if got := DecodeText(EncodeText(text)); got != text {
		t.Errorf("%q became %q", text, got)
	}
}
