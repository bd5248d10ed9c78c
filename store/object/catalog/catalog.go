// Package catalog knows in memory what is in a bucket: which records are in which data objects, and
// what has become of these. Look-ups are answered from it with no request to the bucket. What it
// says is a hint, as are the lists that it is made of: whoever reads a record verifies it.
package catalog

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/eventlog"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/offheap"
)

// Catalog is what is known of a bucket. It may be used by any number of goroutines. Nothing in it waits for
// I/O. Look-ups share a lock that is held for a thousand keys or entries at a time.
type Catalog struct {
	o     Options
	epoch uint64

	// changing has a value while somebody changes the catalog. What is below changes with both it and mu held,
	// but for units that nothing refers to yet. So it may be read with either.
	changing chan struct{}
	mu       sync.RWMutex
	closed   bool
	// generation counts how often all was forgotten: references of earlier ones mean nothing.
	generation uint64

	slabs []slab
	hash  buckets
	sums  Stats

	namespaces map[connector.NamespaceDigest]*namespace
	digests    []connector.NamespaceDigest // by number
	groups     []group
	groupByKey map[groupKey]uint32
	classes    uint32              // there have been
	heldShards map[shardKey]*shard // that no object is of yet; they change with mu alone

	// These belong to whoever has changing.
	head         int // the slab that is filled, or -1
	filled, dead int // units of all slabs
	refusals     int // of objects that are left out before room is looked for again
	leaving      []format.ObjectID
	gone         []goneObject
	early        map[format.ObjectID]uint32 // uses of objects that are not known yet
	floor        uint32                     // what was last used before is left out where memory is short
	events       []eventlog.Event           // to be published
	pending      []pending
	// pendingEntries are what these will have in the hash table.
	pendingEntries int

	holds         atomic.Int64 // snapshots, whose references must stay what they are
	uses          useQueue
	log           *eventlog.Log
	subscriptions eventlog.Subscriptions
}

// New returns an empty catalog. Close gives its memory back.
func New(o Options) (*Catalog, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.complete()
	c := &Catalog{
		o: o, epoch: rand.Uint64(), changing: make(chan struct{}, 1), head: -1,
		namespaces: make(map[connector.NamespaceDigest]*namespace), heldShards: make(map[shardKey]*shard),
		groups: make([]group, 1), groupByKey: make(map[groupKey]uint32),
		early: make(map[format.ObjectID]uint32), log: eventlog.New(o.EventBytes),
	}
	c.hash = newBuckets(c.hashOf)
	c.subscriptions.Log, c.subscriptions.Digest = c.log, c.digest
	return c, nil
}

func (c *Catalog) lock()   { c.changing <- struct{}{} }
func (c *Catalog) unlock() { <-c.changing }

// Close gives the memory back, and ends subscriptions. The catalog is empty from then on, and stays so.
func (c *Catalog) Close() error {
	err := c.subscriptions.Close() // waits for readers, who may be changing the catalog
	c.lock()
	defer c.unlock()
	c.log.Close()
	if !c.closed {
		c.empty(func() { c.closed, c.hash = true, buckets{} })
	}
	return err
}

// Forget empties the catalog: the bucket is another one. Subscribers have to begin again, and pins are gone.
func (c *Catalog) Forget() {
	c.lock()
	defer c.unlock()
	if c.closed {
		return
	}
	c.empty(func() { c.hash = newBuckets(c.hashOf) })
	c.log.Skip()
}

// empty gives the memory back. renew is called with all locks held.
func (c *Catalog) empty(renew func()) {
	c.mu.Lock()
	slabs, hash := c.slabs, c.hash
	c.slabs, c.sums = nil, Stats{LostObjects: c.sums.LostObjects}
	c.generation++
	for _, n := range c.namespaces {
		for _, s := range n.shards {
			for _, k := range s.classes {
				k.offered = 0
			}
		}
	}
	renew()
	c.mu.Unlock()
	c.head, c.filled, c.dead, c.floor, c.leaving, c.gone = -1, 0, 0, 0, nil, nil
	clear(c.early)
	c.uses.take()
	hash.free()
	for i := range slabs {
		if slabs[i].memory != nil {
			_ = offheap.Unmap(slabs[i].memory)
		}
	}
}

// object finds an object, dead ones aside.
func (c *Catalog) object(id *format.ObjectID) (ref, *row) {
	at, ok := c.hash.find(c.objectHash(id), func(at ref) bool {
		o := c.row(at)
		return o.id == *id && o.is(isRow)
	})
	if !ok {
		return at, nil
	}
	return at, c.row(at)
}

// matches reports whether a reference is to a record of a class.
func (c *Catalog) matches(at ref, k *class, key *connector.Key) bool {
	r := c.record(at)
	return r.key == *key && r.at&isRow == 0 && c.classOf(at) == k
}
