package evictionbench

// s3fifo is S3-FIFO as published: a small queue that takes a tenth, a main queue whose
// elements go round while they are used, and a ghost of the keys that left the small queue
// unused.
type s3fifo struct {
	capacity, smallCapacity int
	nodes                   map[uint32]*node
	small, main             *list
	ghost                   *list
	ghosts                  map[uint32]*node
}

const (
	inSmall = iota
	inMain
	s3MaxFreq = 3
	s3Small   = 10 // the small queue is this fraction
)

// NewS3FIFO returns an S3-FIFO.
func NewS3FIFO(capacity int) Cache {
	return byKey{&s3fifo{
		capacity: capacity, smallCapacity: max(1, capacity/s3Small), nodes: make(map[uint32]*node),
		small: newList(), main: newList(), ghost: newList(), ghosts: make(map[uint32]*node),
	}, true}
}

func (c *s3fifo) has(k uint32) bool { return c.nodes[k] != nil }

func (c *s3fifo) access(k uint32) {
	if n := c.nodes[k]; n != nil {
		n.freq = min(n.freq+1, s3MaxFreq)
		return
	}
	for c.small.len+c.main.len >= c.capacity {
		c.evict()
	}
	n := &node{key: k, where: inSmall}
	if g := c.ghosts[k]; g != nil {
		c.ghost.cut(g)
		delete(c.ghosts, k)
		n.where = inMain
		c.main.front(n)
	} else {
		c.small.front(n)
	}
	c.nodes[k] = n
}

func (c *s3fifo) evict() {
	if c.small.len >= c.smallCapacity || c.main.len == 0 {
		c.evictSmall()
		return
	}
	for {
		n := c.main.back()
		c.main.cut(n)
		if n.freq == 0 {
			delete(c.nodes, n.key)
			return
		}
		n.freq--
		c.main.front(n)
	}
}

func (c *s3fifo) evictSmall() {
	n := c.small.back()
	c.small.cut(n)
	if n.freq > 1 {
		n.freq, n.where = 0, inMain
		c.main.front(n)
		return
	}
	delete(c.nodes, n.key)
	if c.ghost.len >= c.capacity-c.smallCapacity {
		old := c.ghost.back()
		c.ghost.cut(old)
		delete(c.ghosts, old.key)
	}
	g := &node{key: n.key}
	c.ghosts[n.key] = g
	c.ghost.front(g)
}
