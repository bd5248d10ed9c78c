// Package evictionbench runs traces of prompts against eviction policies, so that the store's is chosen
// by measurement (docs/adr/0003-store.md). The store's own policy is run by the store's own index.
package evictionbench

import "github.com/kvconn/kvconn/router/replay"

// Cache is a policy with a capacity in blocks.
type Cache interface {
	// Use serves one prompt: it returns how many leading blocks were there, counts them as
	// used and adds the others.
	Use(blocks []int32) (hits int)
}

// HitRate runs a trace and returns the part of all blocks that were hits. A block is a hit if it and
// everything before it was there.
func HitRate(c Cache, t *replay.Trace) float64 {
	hits, all := 0, 0
	for i := range t.Requests {
		blocks := t.Requests[i].Blocks
		hits += c.Use(blocks)
		all += len(blocks)
	}
	return float64(hits) / float64(all)
}

// keyed is a policy that knows single keys only.
type keyed interface {
	has(k int32) bool
	// access uses a key that is there or adds it, evicting what it must.
	access(k int32)
}

// byKey makes a [Cache] of a policy for single keys. With tailFirst the blocks of a prompt
// are accessed from its end to its head, so that the head is the most recently used.
type byKey struct {
	keyed
	tailFirst bool
}

// Use implements [Cache].
func (c byKey) Use(blocks []int32) int {
	hits := 0
	for hits < len(blocks) && c.has(blocks[hits]) {
		hits++
	}
	for i := range blocks {
		if c.tailFirst {
			i = len(blocks) - 1 - i
		}
		c.access(blocks[i])
	}
	return hits
}
