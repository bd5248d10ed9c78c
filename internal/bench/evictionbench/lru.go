package evictionbench

// lru is least recently used.
type lru struct {
	capacity int
	nodes    map[int32]*node
	order    queue
}

// NewLRU returns an LRU. Without tailFirst it does what a cache does that knows nothing of
// prefixes: the head of a prompt is evicted before its end.
func NewLRU(capacity int, tailFirst bool) Cache {
	return byKey{&lru{capacity: capacity, nodes: make(map[int32]*node)}, tailFirst}
}

func (c *lru) has(k int32) bool { return c.nodes[k] != nil }

func (c *lru) access(k int32) {
	n := c.nodes[k]
	if n == nil {
		if c.order.Len() >= c.capacity {
			old := c.order.last()
			old.leave()
			delete(c.nodes, old.key)
		}
		n = &node{key: k}
		c.nodes[k] = n
	}
	c.order.push(n)
}
