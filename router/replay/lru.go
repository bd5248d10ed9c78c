package replay

import "slices"

// none is no slot.
const none = int32(-1)

// slot is a block in a cache.
type slot struct {
	block        int32
	older, newer int32 // neighbours in the order of use, none at the ends
	holders      int32 // running requests that hold it, in a GPU
	valid        bool  // computed or loaded, in a GPU
}

// order is a list of slots by last use.
type order struct {
	slots          []slot
	oldest, newest int32
	free           []int32
}

func newOrder() order { return order{oldest: none, newest: none} }

// take returns a slot for a block, outside the list.
func (o *order) take(block int32) int32 {
	fresh := slot{block: block, older: none, newer: none}
	if n := len(o.free); n > 0 {
		s := o.free[n-1]
		o.free = o.free[:n-1]
		o.slots[s] = fresh
		return s
	}
	o.slots = append(o.slots, fresh)
	return int32(len(o.slots) - 1)
}

// append puts a slot at the end of the most recently used.
func (o *order) append(s int32) {
	o.slots[s].older, o.slots[s].newer = o.newest, none
	if o.newest != none {
		o.slots[o.newest].newer = s
	} else {
		o.oldest = s
	}
	o.newest = s
}

// remove takes a slot out of the list.
func (o *order) remove(s int32) {
	older, newer := o.slots[s].older, o.slots[s].newer
	if older != none {
		o.slots[older].newer = newer
	} else {
		o.oldest = newer
	}
	if newer != none {
		o.slots[newer].older = older
	} else {
		o.newest = older
	}
}

// lru is a tier that evicts the least recently used block. As prompts are used as a whole, their ends
// first, what it holds of a prompt is always a prefix.
type lru struct {
	order
	capacity int
	at       map[int32]int32
	// writes counts the blocks that were put in.
	writes int64
}

func newLRU(capacity int) *lru {
	return &lru{order: newOrder(), capacity: capacity, at: map[int32]int32{}}
}

// prefix returns how many blocks at the head of a prompt are there.
func (c *lru) prefix(blocks []int32) int {
	for i, b := range blocks {
		if _, ok := c.at[b]; !ok {
			return i
		}
	}
	return len(blocks)
}

// use marks the blocks of a prompt as just used and puts in what is missing.
func (c *lru) use(blocks []int32) {
	if c.capacity == 0 {
		return
	}
	for _, b := range slices.Backward(blocks) {
		s, ok := c.at[b]
		if ok {
			c.remove(s)
			c.append(s)
			continue
		}
		if len(c.at) == c.capacity {
			old := c.oldest
			delete(c.at, c.slots[old].block)
			c.remove(old)
			c.free = append(c.free, old)
		}
		s = c.take(b)
		c.at[b] = s
		c.append(s)
		c.writes++
	}
}
