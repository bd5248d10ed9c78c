package connector

import (
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/prompts"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestKeyHasherMakesTheKeysOfTheChain(t *testing.T) {
	rng := seed.Random(t, 0)
	for _, blockSize := range []int{1, 8, 15, 16, 17, 32, 64} {
		tokens := prompts.Random(rng, 50*blockSize+blockSize-1)
		key := RootKey(blockSize, Scope{Salt: "tenant"})
		keys := new(KeyHasher).Append(nil, key, tokens, blockSize)
		if len(keys) != 50 {
			t.Fatalf("block size %d: %d keys of 50 full blocks", blockSize, len(keys))
		}
		var scratch []byte
		for i, got := range keys {
			key, scratch = NextKey(key, AppendTokens(nil, tokens[i*blockSize:(i+1)*blockSize]), scratch)
			if got != key {
				t.Fatalf("block size %d, block %d: key %v, want %v", blockSize, i, got, key)
			}
		}
	}
	if keys := new(KeyHasher).Append(nil, Key{}, prompts.Random(rng, 10), 0); keys != nil {
		t.Errorf("block size 0: %d keys", len(keys))
	}
}

func BenchmarkKeyHasher(b *testing.B) {
	tokens := prompts.Random(rand.New(rand.NewPCG(1, 2)), 128_000)
	var h KeyHasher
	var keys []Key
	for b.Loop() {
		keys = h.Append(keys[:0], Key{}, tokens, 16)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/block")
}
