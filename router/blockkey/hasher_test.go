package blockkey

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func randomTokens(n int) []uint32 {
	rng := rand.New(rand.NewPCG(1, 2))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32N(128_000)
	}
	return tokens
}

var schemes = []Scheme{Tokens, SGLang}

// A walk asks for a few blocks at a time, and for one prompt after another.
func TestAPromptsKeysDoNotDependOnTheSteps(t *testing.T) {
	tokens := randomTokens(1000)
	for _, s := range schemes {
		for _, scope := range []connector.Scope{{}, {Salt: "s"}, {LoRA: "a"}} {
			root := s.Root(16, scope)
			var h Hasher
			h.Begin(root)
			all := h.Append(nil, tokens, 16)
			if len(all) != 62 {
				t.Fatalf("%d keys of 1,000 tokens", len(all))
			}
			h.Begin(root)
			var parts []connector.Key
			for at, step := 0, 1; at < 62; step++ {
				to := min(at+step, 62)
				parts = h.Append(parts, tokens[16*at:16*to], 16)
				parts = h.Append(parts, nil, 16)
				at = to
			}
			if !slices.Equal(parts, all) {
				t.Errorf("%s, %+v: other keys", s, scope)
			}
		}
	}
}

func TestOwnKeysAreTheConnectors(t *testing.T) {
	tokens := randomTokens(320)
	scope := connector.Scope{Salt: "s", LoRA: "a"}
	at, key := Tokens.Root(32, scope), connector.RootKey(32, scope)
	if at.Key() != key {
		t.Fatal("another root")
	}
	var h Hasher
	h.Begin(at)
	for i, got := range h.Append(nil, tokens, 32) {
		block := connector.AppendTokens(nil, tokens[32*i:32*i+32])
		key, _ = connector.NextKey(key, block, nil)
		if at, _ = at.Next(block, nil); got != key || at.Key() != key || Tokens.At(key, Tail{}) != at {
			t.Errorf("block %d: %v, %v, want %v", i, got, at.Key(), key)
		}
	}
}

func TestScopesBeginApart(t *testing.T) {
	for _, s := range schemes {
		seen := map[Link]connector.Scope{}
		for _, scope := range []connector.Scope{{}, {Salt: "a"}, {LoRA: "a"}, {Salt: "a", LoRA: "a"}, {Salt: "aa"}, {Salt: "b", LoRA: "a"}} {
			root := s.Root(16, scope)
			if other, ok := seen[root]; ok {
				t.Errorf("%s: %+v begins where %+v does", s, scope, other)
			}
			seen[root] = scope
		}
	}
	if SGLang.StoreRoot(16) != (connector.Key{}) || Tokens.StoreRoot(16) != connector.RootKey(16, connector.Scope{}) {
		t.Error("stores have another parent for first blocks")
	}
}

func TestNamespacesOfOtherKeysAreRefused(t *testing.T) {
	for _, c := range []struct {
		scheme       Scheme
		engine, keys string
		speculative  string
		want         error
	}{
		{scheme: Tokens, engine: "vllm/0.32.0", keys: connector.KeySchemeTokens},
		{scheme: Tokens, engine: "vllm/0.32.0", keys: connector.KeySchemeEngine, want: ErrScheme},
		{scheme: Tokens, engine: "sglang/0.5.23", keys: connector.KeySchemeEngine, want: ErrScheme},
		{scheme: SGLang, engine: "sglang/0.5.23", keys: connector.KeySchemeEngine},
		{scheme: SGLang, engine: "sglang/0.5.23", keys: connector.KeySchemeEngine, speculative: "NGRAM"},
		{scheme: SGLang, engine: "sglang/0.5.23", keys: connector.KeySchemeEngine, speculative: "EAGLE3", want: ErrPairs},
		{scheme: SGLang, engine: "sglang/0.5.23", keys: connector.KeySchemeTokens, want: ErrScheme},
		{scheme: SGLang, engine: "vllm/0.32.0", keys: connector.KeySchemeEngine, want: ErrScheme},
	} {
		m := &connector.Manifest{Engine: c.engine, KeyScheme: c.keys, Extra: map[string]string{"args.speculative_algorithm": c.speculative}}
		if err := c.scheme.Check(m); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestHashingDoesNotAllocate(t *testing.T) {
	tokens := randomTokens(16 * 64)
	for _, s := range schemes {
		for _, page := range []int{1, 16, 64} {
			var h Hasher
			root := s.Root(page, connector.Scope{Salt: "s"})
			keys := make([]connector.Key, 0, len(tokens))
			if n := testing.AllocsPerRun(20, func() {
				h.Begin(root)
				keys = h.Append(keys[:0], tokens, page)
			}); n != 0 {
				t.Errorf("%s, blocks of %d: %v allocations", s, page, n)
			}
		}
	}
}

// BenchmarkHasher hashes prompts of 131,072 tokens.
func BenchmarkHasher(b *testing.B) {
	tokens := randomTokens(1 << 17)
	for _, s := range schemes {
		for _, page := range []int{16, 64} {
			b.Run(fmt.Sprintf("%s-%d", s, page), func(b *testing.B) {
				var h Hasher
				var keys []connector.Key
				b.ReportAllocs()
				for b.Loop() {
					h.Begin(s.Root(page, connector.Scope{}))
					keys = h.Append(keys[:0], tokens, page)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(keys)), "ns/block")
			})
		}
	}
}
