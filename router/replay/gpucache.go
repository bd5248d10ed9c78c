package replay

import "slices"

// gpuCache is a rank's cache: running requests hold their blocks, the others are evicted, least
// recently held first. It shares blocks between requests with equal prefixes. The valid blocks
// of a prompt are always a prefix of it.
type gpuCache struct {
	blockCache     // its list has the blocks that nobody holds
	held       int // blocks that somebody holds
}

func newGPUCache(capacity int) *gpuCache {
	return &gpuCache{blockCache: newBlockCache(capacity)}
}

// prefix returns how many blocks at the head of a prompt are there and computed.
func (c *gpuCache) prefix(blocks []int32) int {
	for i, b := range blocks {
		if s, ok := c.at[b]; !ok || !c.slots[s].valid {
			return i
		}
	}
	return len(blocks)
}

// hold takes all blocks of a prompt for a request. It reports whether there is room; if not, nothing
// has changed.
func (c *gpuCache) hold(blocks []int32) bool {
	more := 0
	for _, b := range blocks {
		if s, ok := c.at[b]; !ok || c.slots[s].holders == 0 {
			more++
		}
	}
	if c.held+more > c.capacity {
		return false
	}
	c.held += more
	for _, b := range blocks {
		if s, ok := c.at[b]; ok {
			if c.slots[s].holders == 0 {
				c.remove(s)
			}
			c.slots[s].holders++
		}
	}
	for _, b := range blocks {
		if _, ok := c.at[b]; !ok {
			c.slots[c.add(b)].holders = 1
		}
	}
	return true
}

// validate says that the held blocks of a prompt are computed.
func (c *gpuCache) validate(blocks []int32) {
	for _, b := range blocks {
		c.slots[c.at[b]].valid = true
	}
}

// release gives the blocks of a prompt back, its end first.
func (c *gpuCache) release(blocks []int32) {
	for _, b := range slices.Backward(blocks) {
		s := c.at[b]
		if c.slots[s].holders--; c.slots[s].holders == 0 {
			c.held--
			c.append(s)
		}
	}
}
