package replay

import (
	"math"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// One pass tells for every size what a simulation of that size tells.
func TestCapacityIsExactForEverySize(t *testing.T) {
	random := seed.Random(t, 2)
	trace := randomPrompts(random, 300)
	node := make([]int32, len(trace.Requests))
	for i := range node {
		node[i] = int32(random.IntN(4)) - 1
	}
	for name, c := range map[string]struct {
		nodes int
		node  []int32
	}{"one disk": {1, nil}, "three disks": {3, node}} {
		capacity := NewCapacity(trace, c.nodes, c.node)
		for _, size := range []int{0, 1, 2, 3, 5, 8, 13, 40, 100, 300, trace.DistinctBlocks, 1 << 30} {
			var disks []*lru
			for range c.nodes {
				disks = append(disks, newLRU(size))
			}
			hits, all, hitTokens, tokens := 0, 0, 0, 0
			for i := range trace.Requests {
				at, r := int32(0), &trace.Requests[i]
				if c.node != nil {
					at = c.node[i]
				}
				if at < 0 {
					continue
				}
				n := disks[at].prefix(r.Blocks)
				disks[at].use(r.Blocks)
				hits, all, hitTokens, tokens = hits+n, all+len(r.Blocks), hitTokens+trace.tokensOf(r, n), tokens+r.InputTokens
			}
			b, k := capacity.At(size)
			if math.Abs(b-float64(hits)/float64(all)) > 1e-12 || math.Abs(k-float64(hitTokens)/float64(tokens)) > 1e-12 {
				t.Errorf("%s of %d blocks: %v of blocks, %v of tokens; want %d of %d, %d of %d", name, size, b, k, hits, all, hitTokens, tokens)
			}
		}
	}
}

func TestBlocksForIsTheLeastSize(t *testing.T) {
	trace := randomPrompts(seed.Random(t, 7), 200)
	c := NewCapacity(trace, 1, nil)
	_, most := c.At(trace.DistinctBlocks)
	for _, part := range []float64{0.1, 0.5, 0.9, 1} {
		n := c.BlocksFor(part)
		_, at := c.At(n)
		_, below := c.At(n - 1)
		if at < part*most-1e-12 || n > 0 && below >= part*most {
			t.Errorf("%v of the hits: %d blocks have %v, one less %v, of %v", part, n, at, below, most)
		}
	}
	points := c.Points(10, 33)
	last := points[len(points)-1]
	if last.TokenHits != most || last.DiskBytes != 10*float64(last.DiskBlocks) {
		t.Errorf("last point %+v, want all hits, %v", last, most)
	}
	for i := 1; i < len(points); i++ {
		if points[i].DiskBlocks <= points[i-1].DiskBlocks || points[i].TokenHits < points[i-1].TokenHits {
			t.Errorf("points %+v, %+v are out of order", points[i-1], points[i])
		}
	}
	if !slices.ContainsFunc(points, func(p CapacityPoint) bool { return p.DiskBlocks == 33 }) {
		t.Error("the extra point is missing")
	}
}
