package evictionbench

// s3fifo is S3-FIFO as published: a small queue that takes a tenth, a main queue whose
// elements go round while they are used, and a ghost of the keys that left the small queue
// unused.
type s3fifo struct {
	capacity, smallCapacity int
	nodes, ghosts           map[int32]*node
	small, main, ghost      queue
}

const (
	s3MaxFreq = 3
	s3Small   = 10 // the small queue is this fraction
)

// NewS3FIFO returns an S3-FIFO.
func NewS3FIFO(capacity int) Cache {
	return byKey{&s3fifo{
		capacity: capacity, smallCapacity: max(1, capacity/s3Small), nodes: make(map[int32]*node), ghosts: make(map[int32]*node),
	}, true}
}

func (c *s3fifo) has(k int32) bool { return c.nodes[k] != nil }

func (c *s3fifo) access(k int32) {
	if n := c.nodes[k]; n != nil {
		n.freq = min(n.freq+1, s3MaxFreq)
		return
	}
	for c.small.Len()+c.main.Len() >= c.capacity {
		c.evict()
	}
	n := &node{key: k}
	if g := c.ghosts[k]; g != nil {
		g.leave()
		delete(c.ghosts, k)
		c.main.push(n)
	} else {
		c.small.push(n)
	}
	c.nodes[k] = n
}

func (c *s3fifo) evict() {
	if c.small.Len() >= c.smallCapacity || c.main.Len() == 0 {
		c.evictSmall()
		return
	}
	for {
		n := c.main.last()
		if n.freq == 0 {
			n.leave()
			delete(c.nodes, n.key)
			return
		}
		n.freq--
		c.main.push(n)
	}
}

func (c *s3fifo) evictSmall() {
	n := c.small.last()
	if n.freq > 1 {
		n.freq = 0
		c.main.push(n)
		return
	}
	delete(c.nodes, n.key)
	if c.ghost.Len() >= c.capacity-c.smallCapacity {
		old := c.ghost.last()
		old.leave()
		delete(c.ghosts, old.key)
	}
	c.ghost.push(n)
	c.ghosts[n.key] = n
}
