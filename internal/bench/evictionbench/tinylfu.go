package evictionbench

// tinyLFU is like W-TinyLFU: a window of one percent by recency, a main part in two
// segments, four fifths of it protected, and a count of uses, halved now and then, that
// decides whether what leaves the window displaces the main part's next victim. The
// counts are exact where the published policy estimates them.
type tinyLFU struct {
	capacity, windowCapacity, protectedCapacity int
	nodes                                       map[int32]*node
	window, probation, protected                queue
	counts                                      map[int32]uint8
	samples                                     int
}

const (
	tinyMaxCount = 15
	tinyWindow   = 100 // the window is this fraction
	tinySample   = 10  // counts are halved after this many uses for each block of capacity
)

// NewTinyLFU returns a policy like W-TinyLFU.
func NewTinyLFU(capacity int) Cache {
	window := max(1, capacity/tinyWindow)
	return byKey{&tinyLFU{
		capacity: capacity, windowCapacity: window, protectedCapacity: (capacity - window) * 4 / 5,
		nodes: make(map[int32]*node), counts: make(map[int32]uint8),
	}, true}
}

func (c *tinyLFU) has(k int32) bool { return c.nodes[k] != nil }

func (c *tinyLFU) access(k int32) {
	c.count(k)
	n := c.nodes[k]
	if n == nil {
		n = &node{key: k}
		c.nodes[k] = n
		c.window.push(n)
		c.balance()
		return
	}
	if n.in != &c.probation {
		n.in.push(n)
		return
	}
	c.protected.push(n)
	if c.protected.Len() > c.protectedCapacity {
		c.probation.push(c.protected.last())
	}
}

func (c *tinyLFU) balance() {
	if c.window.Len() <= c.windowCapacity {
		return
	}
	candidate := c.window.last()
	if c.window.Len()-1+c.probation.Len()+c.protected.Len() < c.capacity {
		c.probation.push(candidate)
		return
	}
	from := &c.probation
	if from.Len() == 0 {
		from = &c.protected
	}
	victim := from.last()
	if c.counts[candidate.key] <= c.counts[victim.key] {
		victim = candidate
	} else {
		c.probation.push(candidate)
	}
	victim.leave()
	delete(c.nodes, victim.key)
}

func (c *tinyLFU) count(k int32) {
	c.counts[k] = min(c.counts[k]+1, tinyMaxCount)
	if c.samples++; c.samples < tinySample*c.capacity {
		return
	}
	c.samples = 0
	for k, n := range c.counts {
		if c.counts[k] = n / 2; n < 2 {
			delete(c.counts, k)
		}
	}
}
