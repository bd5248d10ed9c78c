package prefix

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// What the index counts is compared with the heap in TestRemovingHoldersReturnsTheirMemory.
func TestBytesOfABlock(t *testing.T) {
	counted := func(ranks int) float64 {
		rng := seed.Random(t, ranks)
		x := newIndex(t)
		holders, _ := gpuRanks(t, x, ranks)
		for range 100 {
			p := randomPrompt(rng, 1000)
			for _, h := range holders {
				p.report(t, x, h, 0, 1000, 100)
			}
		}
		s := x.Stats()
		return float64(s.Bytes) / float64(s.Blocks)
	}
	docs.Says(t, "adr/0006-router-index.md", fmt.Sprintf("%.0f bytes a block with one holder, %.0f with 64", counted(1), counted(64)))
}
