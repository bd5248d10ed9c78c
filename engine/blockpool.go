package engine

import (
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// blockPool hands out the blocks of the cache and, with prefix caching, finds those whose
// content is known. A known block stays findable when nobody holds it any more, until it
// is handed out again, the least recently used first. Block 0 is never handed out: it is
// vLLM's null block.
type blockPool struct {
	refs []int
	// prev and next link the free blocks in the order in which they are handed out.
	// Block 0 is both ends.
	prev, next []uint32
	free       int
	// keys are the contents of known blocks, the zero key of others.
	keys   []connector.Key
	cached map[connector.Key]uint32
}

func newBlockPool(blocks int) *blockPool {
	p := &blockPool{
		refs: make([]int, blocks), prev: make([]uint32, blocks), next: make([]uint32, blocks),
		keys: make([]connector.Key, blocks), cached: make(map[connector.Key]uint32),
	}
	for b := uint32(1); b < uint32(blocks); b++ {
		p.link(b, p.prev[0])
	}
	return p
}

// link puts a block into the free list behind another.
func (p *blockPool) link(b, behind uint32) {
	p.prev[b], p.next[b] = behind, p.next[behind]
	p.prev[p.next[b]], p.next[behind] = b, b
	p.free++
}

func (p *blockPool) unlink(b uint32) {
	p.next[p.prev[b]], p.prev[p.next[b]] = p.next[b], p.prev[b]
	p.free--
}

// take hands out n blocks of unknown content, or none if there are not as many.
func (p *blockPool) take(n int) ([]uint32, bool) {
	if n > p.free {
		return nil, false
	}
	blocks := make([]uint32, max(n, 0))
	for i := range blocks {
		b := p.next[0]
		p.unlink(b)
		p.refs[b] = 1
		if p.keys[b] != (connector.Key{}) {
			delete(p.cached, p.keys[b])
			p.keys[b] = connector.Key{}
		}
		blocks[i] = b
	}
	return blocks, true
}

// hold adds a holder to known blocks.
func (p *blockPool) hold(blocks []uint32) {
	for _, b := range blocks {
		if p.refs[b] == 0 {
			p.unlink(b)
		}
		p.refs[b]++
	}
}

// release takes a holder from blocks. Those that nobody holds become free: known ones
// behind all others, the end of a prompt before its beginning, unknown ones in front.
func (p *blockPool) release(blocks []uint32) {
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		p.refs[b]--
		switch {
		case p.refs[b] < 0:
			panic(fmt.Sprintf("engine: block %d is released by more than its holders", b))
		case p.refs[b] > 0:
		case p.keys[b] == connector.Key{}:
			p.link(b, 0)
		default:
			p.link(b, p.prev[0])
		}
	}
}

// publish makes a held block findable. If another block has the same content, that one
// stays.
func (p *blockPool) publish(b uint32, k connector.Key) {
	if _, known := p.cached[k]; !known {
		p.cached[k], p.keys[b] = b, k
	}
}

// find returns the known blocks of the longest prefix of keys.
func (p *blockPool) find(keys []connector.Key) []uint32 {
	var blocks []uint32
	for _, k := range keys {
		b, known := p.cached[k]
		if !known {
			break
		}
		blocks = append(blocks, b)
	}
	return blocks
}
