package prefix

import (
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// randomTokens are n tokens of a vocabulary that uses all 32 bits.
func randomTokens(rng *rand.Rand, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = rng.Uint32()
	}
	return tokens
}

func TestAppendKeysAreTheConnectorsKeys(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, blockSize := range []int{1, 8, 15, 16, 17, 32, 64} {
		tokens := randomTokens(rng, 50*blockSize+blockSize-1)
		key := connector.RootKey(blockSize, connector.Scope{Salt: "tenant"})
		keys := AppendKeys(nil, key, tokens, blockSize)
		if len(keys) != 50 {
			t.Fatalf("block size %d: %d keys of 50 full blocks", blockSize, len(keys))
		}
		var scratch []byte
		for i, got := range keys {
			key, scratch = connector.NextKey(key, connector.AppendTokens(nil, tokens[i*blockSize:(i+1)*blockSize]), scratch)
			if got != key {
				t.Fatalf("block size %d, block %d: key %v, want %v", blockSize, i, got, key)
			}
		}
	}
	if keys := AppendKeys(nil, connector.Key{}, randomTokens(rng, 10), 0); keys != nil {
		t.Errorf("block size 0: %d keys", len(keys))
	}
}

func BenchmarkAppendKeys(b *testing.B) {
	tokens := randomTokens(rand.New(rand.NewPCG(1, 2)), 128_000)
	var keys []connector.Key
	for b.Loop() {
		keys = AppendKeys(keys[:0], connector.Key{}, tokens, 16)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/block")
}
