package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
	"github.com/kvconn/kvconn/internal/testkit/prompts"
)

const generated = 24

// prompt returns tokens that only depend on the seed.
func prompt(seed uint64, n int) []uint32 { return prompts.Of(seed, n) }

// alone returns a request's tokens from an engine that serves nothing else, computes the
// prompt in one step and caches nothing.
func alone(t *testing.T, q Request, changes ...func(*Options)) []uint32 {
	t.Helper()
	e := newEngine(t, append(changes, func(o *Options) { o.MaxBatchedTokens = 4096 })...)
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
func filled(t *testing.T, q Request, changes ...func(*Options)) *memStore {
	t.Helper()
	e := newEngine(t, changes...)
	store := newStore()
	newFake(t, e, store)
	run(t, e, q)
	return store
}

func bothPrefixCachings(t *testing.T, test func(t *testing.T, caching bool)) {
	for _, caching := range []bool{false, true} {
		t.Run(fmt.Sprintf("prefix caching %t", caching), func(t *testing.T) { test(t, caching) })
	}
}

func newEngine(t *testing.T, changes ...func(*Options)) *Engine {
	t.Helper()
	o := Options{Model: model.Tiny(7), Blocks: 200}
	for _, change := range changes {
		if change != nil {
			change(&o)
		}
	}
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// run serves requests and checks that the engine has all its blocks afterwards.
func run(t *testing.T, e *Engine, requests ...Request) []Result {
	t.Helper()
	results, err := e.Run(t.Context(), requests)
	if err != nil {
		t.Fatal(err)
	}
	if e.pool.free != e.opts.Blocks-1 {
		t.Fatalf("%d of %d blocks are free in an idle engine", e.pool.free, e.opts.Blocks-1)
	}
	return results
}

func step(t *testing.T, e *Engine) []Result {
	t.Helper()
	ended, _, err := e.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ended
}

func matches(calls []string) []string {
	return slices.DeleteFunc(slices.Clone(calls), func(c string) bool { return !strings.HasPrefix(c, "match") })
}

// chainOf returns the keys of a prompt's loadable blocks.
func (e *Engine) chainOf(q Request) []connector.Key {
	r := &request{Request: q, tokens: q.Prompt}
	return r.chain((len(q.Prompt)-1)/e.opts.BlockSize, e.opts.BlockSize)
}
