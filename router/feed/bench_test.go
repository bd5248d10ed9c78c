package feed

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
)

// BenchmarkIngest decodes and hashes events of 32 blocks of 16 tokens, without an index.
func BenchmarkIngest(b *testing.B) {
	g := NewIngest(blockkey.Tokens, 16, 0, &discardIndex{key: connector.Key{1}})
	x := uint32(1)
	var payloads [][]byte
	for range 512 {
		tokens, hashes := make([]uint32, 32*16), make([]uint64, 32)
		for i := range tokens {
			x = x*1664525 + 1013904223
			tokens[i] = x >> 15
		}
		for i := range hashes {
			hashes[i] = uint64(x)<<32 + uint64(i)
		}
		payloads = append(payloads, eventBatch(eventMap("BlockStored", field("block_hashes", hashes), field("parent_block_hash", uint64(5)),
			field("token_ids", tokens), field("block_size", 16), field("medium", "GPU"))))
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if _, err := g.Batch(payloads[i%len(payloads)]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*32), "ns/block")
}
