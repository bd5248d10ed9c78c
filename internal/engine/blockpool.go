package engine

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// content is what a known block holds: the KV of a token block in the layers of a group.
type content struct {
	group int
	key   connector.Key
}

// blockPool hands out the blocks of the cache, to any layer group, and, with prefix caching,
// finds blocks of known content. A known block without a holder stays findable until it is
// handed out again, the least recently used first. Block 0 is never handed out: it is vLLM's
// null block.
type blockPool struct {
	refs []int
	// prev and next link the free blocks in the order in which they are handed out.
	// Block 0 is both ends.
	prev, next []uint32
	free       int
	// contents are those of known blocks, zero for others.
	contents []content
	cached   map[content]uint32
}

func newBlockPool(blocks int) *blockPool {
	p := &blockPool{
		refs: make([]int, blocks), prev: make([]uint32, blocks), next: make([]uint32, blocks),
		contents: make([]content, blocks), cached: make(map[content]uint32),
	}
	for b := uint32(1); b < uint32(blocks); b++ {
		p.link(b, p.prev[0])
	}
	return p
}

// link puts a block into the free list after another.
func (p *blockPool) link(b, other uint32) {
	p.prev[b], p.next[b] = other, p.next[other]
	p.prev[p.next[b]], p.next[other] = b, b
	p.free++
}

func (p *blockPool) unlink(b uint32) {
	p.next[p.prev[b]], p.prev[p.next[b]] = p.next[b], p.prev[b]
	p.free--
}

// take hands out n blocks of unknown content, or none if there are fewer.
func (p *blockPool) take(n int) ([]uint32, bool) {
	if n > p.free {
		return nil, false
	}
	blocks := make([]uint32, max(n, 0))
	for i := range blocks {
		b := p.next[0]
		p.unlink(b)
		p.refs[b] = 1
		if p.contents[b] != (content{}) {
			delete(p.cached, p.contents[b])
			p.contents[b] = content{}
		}
		blocks[i] = b
	}
	return blocks, true
}

// hold adds a holder to known blocks. It passes over [connector.NoBlock], as release does.
func (p *blockPool) hold(blocks []uint32) {
	for _, b := range blocks {
		if b == connector.NoBlock {
			continue
		}
		if p.refs[b] == 0 {
			p.unlink(b)
		}
		p.refs[b]++
	}
}

// release takes a holder from blocks. Blocks without a holder become free: known ones at the
// end of the list, the end of a prompt before its beginning, unknown ones at its head.
func (p *blockPool) release(blocks []uint32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		if b == connector.NoBlock {
			continue
		}
		p.refs[b]--
		switch {
		case p.refs[b] < 0:
			panic(fmt.Sprintf("engine: block %d is released by more than its holders", b))
		case p.refs[b] > 0:
		case p.contents[b] == content{}:
			p.link(b, 0)
		default:
			p.link(b, p.prev[0])
		}
	}
}

// publish makes a held block findable. If another block has the same content, that one
// stays.
func (p *blockPool) publish(b uint32, c content) {
	if _, known := p.cached[c]; !known && b != connector.NoBlock {
		p.cached[c], p.contents[b] = b, c
	}
}

// forget makes no block findable any more.
func (p *blockPool) forget() {
	clear(p.cached)
	clear(p.contents)
}

// find returns the tables of the longest prefix of keys that requests may continue after,
// one for each group: every block with full attention, else those in the window, and
// [connector.NoBlock] before it.
func (p *blockPool) find(keys []connector.Key, groups []connector.Group, blockSize int) [][]uint32 {
	for n := p.prefix(keys, groups); ; n-- {
		tables, missing := make([][]uint32, len(groups)), false
		for g := range groups {
			var first int
			if tables[g], first = p.after(keys[:n], g); first > groups[g].FirstBlock(n*blockSize, blockSize) {
				missing = true
				break
			}
			for i := range groups[g].FirstBlock(n*blockSize, blockSize) {
				tables[g][i] = connector.NoBlock
			}
		}
		if !missing {
			return tables
		}
	}
}

// prefix is the number of keys that are known to all groups with full attention.
func (p *blockPool) prefix(keys []connector.Key, groups []connector.Group) int {
	n := len(keys)
	for g := range groups {
		if groups[g].Window == 0 {
			n = min(n, p.known(keys, g))
		}
	}
	return n
}

// known is the length of the prefix of keys that a group knows.
func (p *blockPool) known(keys []connector.Key, group int) int {
	for i, k := range keys {
		if _, ok := p.cached[content{group, k}]; !ok {
			return i
		}
	}
	return len(keys)
}

// after returns a group's blocks of keys from the first on after which none is missing.
func (p *blockPool) after(keys []connector.Key, group int) (table []uint32, first int) {
	table = make([]uint32, len(keys))
	for i := len(keys) - 1; i >= 0; i-- {
		b, ok := p.cached[content{group, keys[i]}]
		if !ok {
			return table, i + 1
		}
		table[i] = b
	}
	return table, 0
}
