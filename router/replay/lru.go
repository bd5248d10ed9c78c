package replay

import "slices"

type slot struct {
	block        int32
	older, newer int32 // neighbours in the list
	holders      int32 // running requests that hold it, in a GPU
	valid        bool  // computed or loaded, in a GPU
}

// blockCache is a bounded number of blocks, and a list of those that may be evicted by last use.
type blockCache struct {
	capacity int
	at       map[int32]int32 // slots by block
	slots    []slot          // slots[0] is between the newest and the oldest of the list
}

func newBlockCache(capacity int) blockCache {
	return blockCache{capacity: capacity, at: map[int32]int32{}, slots: make([]slot, 1)}
}

// add puts in a block that is not there, outside the list, in place of the oldest one if there is no room.
func (c *blockCache) add(block int32) int32 {
	s := int32(len(c.slots))
	if len(c.at) == c.capacity {
		s = c.slots[0].newer
		c.remove(s)
		delete(c.at, c.slots[s].block)
		c.slots[s] = slot{block: block}
	} else {
		c.slots = append(c.slots, slot{block: block})
	}
	c.at[block] = s
	return s
}

// append puts a slot at the end of the most recently used.
func (c *blockCache) append(s int32) {
	newest := c.slots[0].older
	c.slots[s].older, c.slots[s].newer = newest, 0
	c.slots[newest].newer, c.slots[0].older = s, s
}

func (c *blockCache) remove(s int32) {
	older, newer := c.slots[s].older, c.slots[s].newer
	c.slots[older].newer, c.slots[newer].older = newer, older
}

// lru is a tier that evicts the least recently used block. As prompts are used as a whole, their ends
// first, it always holds a prefix of each prompt.
type lru struct {
	blockCache
	// writes counts the blocks that were put in.
	writes int64
}

func newLRU(capacity int) *lru { return &lru{blockCache: newBlockCache(capacity)} }

// prefix returns how many blocks at the head of a prompt are there.
func (c *lru) prefix(blocks []int32) int {
	for i, b := range blocks {
		if _, ok := c.at[b]; !ok {
			return i
		}
	}
	return len(blocks)
}

// use marks the blocks of a prompt as just used and puts in those that are missing.
func (c *lru) use(blocks []int32) {
	if c.capacity == 0 {
		return
	}
	for _, b := range slices.Backward(blocks) {
		s, ok := c.at[b]
		if ok {
			c.remove(s)
		} else {
			s = c.add(b)
			c.writes++
		}
		c.append(s)
	}
}

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
		if !c.has(b) {
			return i
		}
	}
	return len(blocks)
}

// has reports whether a block is there and computed.
func (c *gpuCache) has(block int32) bool {
	s, ok := c.at[block]
	return ok && c.slots[s].valid
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
