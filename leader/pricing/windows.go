package pricing

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// Index is what prices need of the tiers. Its methods never wait for I/O.
type Index interface {
	// Present sets at[i] where the record of keys[i] is there, without counting as a use.
	Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool)
	// PayloadBytes is the size in bytes of a shard's payloads, 0 while it is not known.
	PayloadBytes(ns connector.NamespaceDigest, shard connector.Shard) int
}

// Group is a layer group and its shards. A hit needs all of them.
type Group struct {
	*connector.Group
	Index  int
	Shards []connector.Shard
}

// Presence asks the tiers which blocks they have. Its work space is used again.
type Presence struct {
	Index Index
	NS    connector.NamespaceDigest
	shard []bool
}

// Blocks sets at[i] to whether every one of shards has the block of keys[i].
func (p *Presence) Blocks(shards []connector.Shard, keys []connector.Key, at []bool) {
	clear(at)
	p.Index.Present(p.NS, shards[0], keys, at)
	for _, shard := range shards[1:] {
		if !slices.Contains(at, true) {
			return
		}
		p.shard = slices.Grow(p.shard[:0], len(keys))[:len(keys)]
		clear(p.shard)
		p.Index.Present(p.NS, shard, keys, p.shard)
		for i, present := range p.shard {
			at[i] = at[i] && present
		}
	}
}

// Windows are layer groups: a load needs only their last blocks.
type Windows struct {
	BlockSize int
	Searches  []Search
}

// Search looks for the blocks of one window.
type Search struct {
	*Group
	// The blocks [low, high) are there.
	low, high int
	// at, which begins with the search's first block, says which blocks are there: from asked on,
	// but for blocks that no boundary needs any more.
	asked int
	at    []bool
}

// Boundary returns the largest boundary up to limit for which every window has its blocks, or
// first. It goes from right to left and asks for each block once at most: a block that is missing
// rules out all boundaries whose window holds it.
func (w *Windows) Boundary(p *Presence, keys []connector.Key, first, limit int) int {
	for i := range w.Searches {
		s := &w.Searches[i]
		s.low, s.high, s.asked = limit, limit, limit
		s.at = slices.Grow(s.at[:0], limit-first)[:limit-first]
	}
	boundary := limit
	for boundary > first {
		miss := -1
		for i := range w.Searches {
			s := &w.Searches[i]
			begin := max(first, s.FirstBlock(boundary*w.BlockSize, w.BlockSize))
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
func (s *Search) missing(p *Presence, keys []connector.Key, first, begin, end int) int {
	if s.low >= end || s.high < end {
		s.low = end
	}
	for s.high = end; s.low > begin; s.low-- {
		if s.low <= s.asked {
			p.Blocks(s.Shards, keys[begin:s.low], s.at[begin-first:s.low-first])
			s.asked = begin
		}
		if i := s.low - 1; !s.at[i-first] {
			return i
		}
	}
	return -1
}
