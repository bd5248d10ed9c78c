package replay

import "slices"

// CapacityPoint is the hit rate of one size of disk.
type CapacityPoint struct {
	// DiskBlocks and DiskBytes are the size of each node's disk tier.
	DiskBlocks int     `json:"disk_blocks"`
	DiskBytes  float64 `json:"disk_bytes"`
	// BlockHits and TokenHits are the parts of all blocks and tokens of prompts that are found at their
	// heads.
	BlockHits float64 `json:"block_hit_rate"`
	TokenHits float64 `json:"token_hit_rate"`
}

// Capacity is the hit rate of every size of disk at once. It is exact for tiers that evict the least
// recently used block of prompts used as a whole, one after the other: a disk of n blocks then holds
// the n blocks used last, whatever n is (Mattson et al., Evaluation techniques for storage
// hierarchies, 1970). So one pass over the trace, with the distance of each use from the one before,
// gives the rates of all sizes.
type Capacity struct {
	blocks, tokens       []float64 // hits by the smallest size that has them
	allBlocks, allTokens float64
}

// NewCapacity measures a trace on the disks of a number of nodes. node is the node of each request, -1 to leave it
// out; nil for one disk that all requests share.
func NewCapacity(t *Trace, nodes int, node []int32) *Capacity {
	c := &Capacity{blocks: make([]float64, t.DistinctBlocks+1), tokens: make([]float64, t.DistinctBlocks+1)}
	for n := range max(nodes, 1) {
		s := newStack(t, func(i int) bool { return node == nil || int(node[i]) == n })
		for i := range t.Requests {
			if s.uses(i) {
				c.add(t, &t.Requests[i], s)
			}
		}
	}
	for i := 1; i < len(c.blocks); i++ {
		c.blocks[i] += c.blocks[i-1]
		c.tokens[i] += c.tokens[i-1]
	}
	return c
}

func (c *Capacity) add(t *Trace, r *Request, s *stack) {
	c.allBlocks += float64(len(r.Blocks))
	c.allTokens += float64(r.InputTokens)
	for i, b := range r.Blocks {
		if d := s.depth(b); d > 0 {
			c.blocks[d]++
			c.tokens[d] += float64(t.tokensOf(r, i+1) - t.tokensOf(r, i))
		}
	}
	for i := len(r.Blocks) - 1; i >= 0; i-- {
		s.use(r.Blocks[i])
	}
}

// At returns the hit rates with disks of a number of blocks.
func (c *Capacity) At(diskBlocks int) (blocks, tokens float64) {
	at := min(max(diskBlocks, 0), len(c.blocks)-1)
	if c.allBlocks > 0 {
		blocks = c.blocks[at] / c.allBlocks
	}
	if c.allTokens > 0 {
		tokens = c.tokens[at] / c.allTokens
	}
	return blocks, tokens
}

// BlocksFor returns the smallest size of disk, in blocks, that has the given part of the hits of an infinite
// one, by tokens.
func (c *Capacity) BlocksFor(part float64) int {
	n, _ := slices.BinarySearch(c.tokens, part*c.tokens[len(c.tokens)-1])
	return n
}

// Points returns the curve at 1, 2, 3, 5 and 7 times the powers of ten, over at least three powers up to
// the first size that holds all blocks, and at extra.
func (c *Capacity) Points(bytesPerBlock float64, extra ...int) []CapacityPoint {
	var sizes []int
	last, power := len(c.blocks)-1, 1
	for power*10000 <= last {
		power *= 10
	}
	for ; ; power *= 10 {
		for _, m := range [...]int{1, 2, 3, 5, 7} {
			sizes = append(sizes, m*power)
			if m*power >= last {
				return c.points(bytesPerBlock, append(sizes, extra...))
			}
		}
	}
}

// stack holds the blocks of a trace by their last use.
type stack struct {
	uses  func(request int) bool
	last  []int32 // number of the latest use of each block, from 1; 0 for none
	n     int32   // uses so far
	inUse int32   // blocks used so far
	tree  []int32 // Fenwick tree: 1 at each latest use
}

func newStack(t *Trace, uses func(int) bool) *stack {
	n := 0
	for i := range t.Requests {
		if uses(i) {
			n += len(t.Requests[i].Blocks)
		}
	}
	return &stack{uses: uses, last: make([]int32, t.DistinctBlocks), tree: make([]int32, n+1)}
}

// depth returns the place of a block, counted from 1 for the most recently used one; 0 if it was not used.
func (s *stack) depth(b int32) int32 {
	at := s.last[b]
	if at == 0 {
		return 0
	}
	before := int32(0) // blocks last used before it
	for i := at - 1; i > 0; i -= i & -i {
		before += s.tree[i]
	}
	return s.inUse - before
}

func (s *stack) use(b int32) {
	if s.last[b] > 0 {
		s.mark(s.last[b], -1)
	} else {
		s.inUse++
	}
	s.n++
	s.last[b] = s.n
	s.mark(s.n, 1)
}

func (s *stack) mark(at, by int32) {
	for i := int(at); i < len(s.tree); i += i & -i {
		s.tree[i] += by
	}
}

// points returns the curve at the given sizes, sorted and each once.
func (c *Capacity) points(bytesPerBlock float64, sizes []int) []CapacityPoint {
	slices.Sort(sizes)
	var out []CapacityPoint
	for _, n := range slices.Compact(sizes) {
		if n <= 0 {
			continue
		}
		b, t := c.At(n)
		out = append(out, CapacityPoint{DiskBlocks: n, DiskBytes: float64(n) * bytesPerBlock, BlockHits: b, TokenHits: t})
	}
	return out
}
