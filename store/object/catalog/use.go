package catalog

import (
	"sync"

	"github.com/kvconn/kvconn/store/object/format"
)

// useQueue has the uses of objects by this node that are to be reported.
type useQueue struct {
	mu   sync.Mutex
	list []format.Use
}

// maxUses are kept until they are reported. Past it an object's use is noted when it is used again.
const maxUses = 1 << 16

// use notes that this node uses an object, unless it is known to have been used of late. The lock is held for
// reading.
func (c *Catalog) use(o *row, now format.Seconds) {
	if int64(now)-int64(o.lastUse()) < int64(c.o.UseInterval.Seconds()) {
		return
	}
	c.uses.mu.Lock()
	defer c.uses.mu.Unlock()
	if len(c.uses.list) < maxUses && o.useAt(uint32(now)) {
		c.uses.list = append(c.uses.list, format.Use{Object: o.id, When: now})
	}
}

func (q *useQueue) take() []format.Use {
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.list
	q.list = nil
	return list
}

// Uses returns and forgets which objects this node used since the last call.
func (c *Catalog) Uses() []format.Use { return c.uses.take() }
