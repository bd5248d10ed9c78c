package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

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
		f.fail = func(_ string, _, i int) bool { return i == local+1 && local%2 == 1 }
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
			f.fail = func(_ string, _, i int) bool { return i == bad || i == bad+3 }
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
	f.fail = func(string, int, int) bool { return true }
	check(t, run(t, e, q)[0], alone(t, q))
	want := []string{"match a computed 0: 144", "match a computed 0: 0"}
	if got := matches(f.calls); !slices.Equal(got, want) {
		t.Errorf("matches %q, want %q", got, want)
	}
}

func TestConnectorThatOffersFailedBlocksForEverEndsTheRun(t *testing.T) {
	q := Request{ID: "a", Prompt: prompt(7, 150), MaxTokens: 1}
	e := newEngine(t, nil)
	f := newFake(t, e, filled(t, q))
	f.forgetful = true
	f.fail = func(string, int, int) bool { return true }
	if _, err := e.Run(t.Context(), []Request{q}); err == nil || !strings.Contains(err.Error(), "does not learn") {
		t.Errorf("error %v", err)
	}
}

func TestConversationsUnderPressureGiveTheSameTokens(t *testing.T) {
	bothPrefixCachings(t, func(t *testing.T, caching bool) {
		r := seed.Random(t, 1)
		store := newStore()
		system := prompt(20, 70)
		loaded, recomputed, preemptions := 0, 0, 0
		for round := range 4 {
			e := newEngine(t, func(o *Options) {
				o.Blocks, o.MaxSeqs, o.MaxBatchedTokens, o.PrefixCaching = 16+r.IntN(12), 2+r.IntN(4), 10+r.IntN(60), caching
			})
			f := newFake(t, e, store)
			f.polls = 1 + r.IntN(4)
			f.fail = func(string, int, int) bool { return r.IntN(10) == 0 }
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

func TestAbortOfARunningRequestFreesItsBlocks(t *testing.T) {
	e := newEngine(t, nil)
	newFake(t, e, newStore())
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

func TestTextIsItsBytes(t *testing.T) {
	const text = "Grüße, \x00\xff!"
	var got []byte
	for _, token := range EncodeText(text) {
		got = append(got, byte(token))
	}
	if string(got) != text {
		t.Errorf("%q became %q", text, got)
	}
}
