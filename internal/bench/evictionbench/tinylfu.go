package evictionbench

// tinyLFU is like W-TinyLFU: a window of one percent by recency, a main part in two
// segments of which four fifths are protected, and a count of uses, halved now and then,
// that decides whether what leaves the window displaces the main part's next victim. The
// counts are exact where the published policy estimates them.
type tinyLFU struct {
	capacity, windowCapacity, protectedCapacity int
	nodes                                       map[uint32]*node
	window, probation, protected                *list
	counts                                      map[uint32]uint8
	samples                                     int
}

const (
	inWindow = iota
	inProbation
	inProtected
	tinyMaxCount = 15
	tinyWindow   = 100 // the window is this fraction
	tinySample   = 10  // counts are halved after this many uses for each block of capacity
)

// NewTinyLFU returns a policy like W-TinyLFU.
func NewTinyLFU(capacity int) Cache {
	window := max(1, capacity/tinyWindow)
	return byKey{&tinyLFU{
		capacity: capacity, windowCapacity: window, protectedCapacity: (capacity - window) * 4 / 5,
		nodes: make(map[uint32]*node), window: newList(), probation: newList(), protected: newList(),
		counts: make(map[uint32]uint8),
	}, true}
}

func (c *tinyLFU) has(k uint32) bool { return c.nodes[k] != nil }

func (c *tinyLFU) access(k uint32) {
	c.count(k)
	n := c.nodes[k]
	if n == nil {
		n = &node{key: k, where: inWindow}
		c.nodes[k] = n
		c.window.front(n)
		c.balance()
		return
	}
	switch n.where {
	case inWindow:
		c.window.cut(n)
		c.window.front(n)
	case inProtected:
		c.protected.cut(n)
		c.protected.front(n)
	case inProbation:
		c.probation.cut(n)
		n.where = inProtected
		c.protected.front(n)
		if c.protected.len > c.protectedCapacity {
			old := c.protected.back()
			c.protected.cut(old)
			old.where = inProbation
			c.probation.front(old)
		}
	}
}

func (c *tinyLFU) balance() {
	if c.window.len <= c.windowCapacity {
		return
	}
	candidate := c.window.back()
	c.window.cut(candidate)
	candidate.where = inProbation
	if c.window.len+c.probation.len+c.protected.len < c.capacity {
		c.probation.front(candidate)
		return
	}
	from := c.probation
	if from.len == 0 {
		from = c.protected
	}
	victim := from.back()
	if c.counts[candidate.key] <= c.counts[victim.key] {
		delete(c.nodes, candidate.key)
		return
	}
	from.cut(victim)
	delete(c.nodes, victim.key)
	c.probation.front(candidate)
}

func (c *tinyLFU) count(k uint32) {
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
