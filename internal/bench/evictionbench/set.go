package evictionbench

// keyed is a policy that knows single keys only.
type keyed interface {
	has(k uint32) bool
	// access uses a key that is there or adds it, evicting what it must.
	access(k uint32)
}

// byKey makes a [Cache] of a policy for single keys. With tailFirst the blocks of a prompt
// are accessed from its end to its head, so that the head is the most recently used.
type byKey struct {
	keyed
	tailFirst bool
}

// Use implements [Cache].
func (c byKey) Use(blocks []uint32) int {
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

// node is an element of a list.
type node struct {
	key        uint32
	freq       uint8
	where      uint8 // which of a policy's lists it is in
	prev, next *node
}

// list is a doubly linked list with the most recent element in front.
type list struct {
	root node
	len  int
}

func newList() *list {
	l := new(list)
	l.root.prev, l.root.next = &l.root, &l.root
	return l
}

func (l *list) front(n *node) {
	n.prev, n.next = &l.root, l.root.next
	n.prev.next, n.next.prev = n, n
	l.len++
}

func (l *list) cut(n *node) {
	n.prev.next, n.next.prev = n.next, n.prev
	l.len--
}

func (l *list) back() *node { return l.root.prev }

// lru is least recently used.
type lru struct {
	capacity int
	nodes    map[uint32]*node
	order    *list
}

// NewLRU returns an LRU. Without tailFirst it is what a cache that knows nothing of
// prefixes does: the head of a prompt is evicted before its end.
func NewLRU(capacity int, tailFirst bool) Cache {
	return byKey{&lru{capacity: capacity, nodes: make(map[uint32]*node), order: newList()}, tailFirst}
}

func (c *lru) has(k uint32) bool { return c.nodes[k] != nil }

func (c *lru) access(k uint32) {
	n := c.nodes[k]
	if n != nil {
		c.order.cut(n)
	} else {
		if c.order.len >= c.capacity {
			old := c.order.back()
			c.order.cut(old)
			delete(c.nodes, old.key)
		}
		n = &node{key: k}
		c.nodes[k] = n
	}
	c.order.front(n)
}
