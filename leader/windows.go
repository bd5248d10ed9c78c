package leader

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// presence asks the tiers which blocks they have. Its work space is used again.
type presence struct {
	index Index
	ns    connector.NamespaceDigest
	shard []bool
}

// blocks sets at[i] to whether every one of shards has the block of keys[i].
func (p *presence) blocks(shards []connector.Shard, keys []connector.Key, at []bool) {
	clear(at)
	p.index.Present(p.ns, shards[0], keys, at)
	for _, shard := range shards[1:] {
		if !slices.Contains(at, true) {
			return
		}
		p.shard = slices.Grow(p.shard[:0], len(keys))[:len(keys)]
		clear(p.shard)
		p.index.Present(p.ns, shard, keys, p.shard)
		for i, present := range p.shard {
			at[i] = at[i] && present
		}
	}
}

// windows are layer groups: a load needs only their last blocks.
type windows struct {
	blockSize int
	searches  []search
}

// search looks for the blocks of one window.
type search struct {
	*group
	// The blocks [low, high) are there.
	low, high int
	// at, which begins with the search's first block, says which blocks are there: from asked on,
	// but for blocks that no boundary needs any more.
	asked int
	at    []bool
}

// boundary returns the largest boundary up to limit for which every window has its blocks, or
// first. It goes from right to left and asks for each block once at most: a block that is missing
// rules out all boundaries whose window holds it.
func (w *windows) boundary(p *presence, keys []connector.Key, first, limit int) int {
	for i := range w.searches {
		s := &w.searches[i]
		s.low, s.high, s.asked = limit, limit, limit
		s.at = slices.Grow(s.at[:0], limit-first)[:limit-first]
	}
	boundary := limit
	for boundary > first {
		miss := -1
		for i := range w.searches {
			s := &w.searches[i]
			begin := max(first, s.FirstBlock(boundary*w.blockSize, w.blockSize))
			if miss = s.missing(p, keys, first, begin, boundary); miss >= 0 {
				break
			}
		}
		if miss < 0 {
			return boundary
		}
		boundary = miss
	}
	return first
}

// missing returns the last of the blocks [begin, end) that is not there, or -1.
func (s *search) missing(p *presence, keys []connector.Key, first, begin, end int) int {
	if s.low >= end || s.high < end {
		s.low = end
	}
	for s.high = end; s.low > begin; s.low-- {
		if s.low <= s.asked {
			p.blocks(s.shards, keys[begin:s.low], s.at[begin-first:s.low-first])
			s.asked = begin
		}
		if i := s.low - 1; !s.at[i-first] {
			return i
		}
	}
	return -1
}
