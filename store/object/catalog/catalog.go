// Package catalog knows in memory what is in a bucket: which records are in which data objects, and
// what has become of these. Look-ups are answered from it with no request to the bucket. What it
// says is a hint, as are the lists that it is made of: whoever reads a record verifies it.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
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
	classes    uint32 // there have been

	// These belong to whoever has changing.
	head         int // the slab that is filled, or -1
	filled, dead int // units of all slabs
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
		namespaces: make(map[connector.NamespaceDigest]*namespace),
		groups:     make([]group, 1), groupByKey: make(map[groupKey]uint32),
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

// Epoch is a random number of this catalog, as by [store.Events].
func (c *Catalog) Epoch() uint64 { return c.epoch }

// Subscribe takes a snapshot of the records that are offered, and follows what comes and goes after it. A
// snapshot that is not read or closed keeps memory from being used again.
func (c *Catalog) Subscribe(ctx context.Context) (store.Subscription, error) {
	select {
	case c.changing <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("subscribe: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	defer c.unlock()
	if c.closed {
		return nil, store.ErrClosed
	}
	s := &snapshot{c: c, generation: c.generation}
	c.each(func(at ref, o *row) {
		if o.offered() {
			s.objects = append(s.objects, at)
		}
	})
	c.holds.Add(1)
	return c.subscriptions.New(s, c.log.Follow())
}

// SubscribeAfter follows the events after seq, without a snapshot.
func (c *Catalog) SubscribeAfter(epoch, seq uint64) (store.Subscription, error) {
	if epoch != c.epoch {
		return nil, fmt.Errorf("epoch %d, not %d: %w", epoch, c.epoch, store.ErrLagged)
	}
	return c.subscriptions.After(seq)
}

// digest is the namespace of a number in events.
func (c *Catalog) digest(number uint16) connector.NamespaceDigest {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.digests[number]
}

// snapshot is the records that were offered at one time. Objects do not move while there is one, and records of
// objects that leave stay where they are.
type snapshot struct {
	c          *Catalog
	generation uint64
	objects    []ref
	closed     bool
}

// Close lets go of it.
func (s *snapshot) Close() error {
	if !s.closed {
		s.closed, s.objects = true, nil
		s.c.holds.Add(-1)
	}
	return nil
}

// snapshotRun is how many records are copied under one hold of the lock.
const snapshotRun = 512

// Records calls f for each record, once for each key.
func (s *snapshot) Records(f func(store.Resident) error) error {
	twins := make(map[store.RecordID]bool) // seen
	var batch []store.Resident
	var twin []bool
	from := 0 // of the first object's records
	for len(s.objects) > 0 {
		var err error
		if batch, twin, from, err = s.next(batch[:0], twin[:0], from); err != nil {
			return err
		}
		for i := range batch {
			if twin[i] {
				if twins[batch[i].ID] {
					continue
				}
				twins[batch[i].ID] = true
			}
			if err := f(batch[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// errForgotten says that all was forgotten since the snapshot was taken.
var errForgotten = errors.New("the bucket was emptied")

// next copies records, from a record of the first object on, and tells which of them may be there twice.
func (s *snapshot) next(batch []store.Resident, twin []bool, from int) ([]store.Resident, []bool, int, error) {
	c := s.c
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch {
	case c.closed:
		return batch, twin, 0, store.ErrClosed
	case c.generation != s.generation:
		return batch, twin, 0, fmt.Errorf("%w: %w", errForgotten, store.ErrLagged)
	}
	for len(s.objects) > 0 && len(batch) < snapshotRun {
		at := s.objects[0]
		o := c.row(at)
		k := c.groups[o.group].class
		p := parents{records: c.records(at, o), runs: c.runs(at, o)}
		for ; from < int(o.records) && len(batch) < snapshotRun; from++ {
			r := &p.records[from]
			if r.at&isLoose != 0 {
				continue
			}
			id := store.RecordID{Namespace: k.namespace.digest, Shard: k.shard, Key: r.key}
			batch = append(batch, store.Resident{ID: id, Parent: p.of(from)})
			twin = append(twin, r.at&isTwin != 0)
		}
		if from == int(o.records) {
			s.objects, from = s.objects[1:], 0
		}
	}
	return batch, twin, from, nil
}

// parents tells the parents of an object's records, asked one after the other.
type parents struct {
	records []record
	runs    []run
}

func (p *parents) of(i int) connector.Key {
	for len(p.runs) > 1 && int(p.runs[1].first) <= i {
		p.runs = p.runs[1:]
	}
	if len(p.runs) > 0 && int(p.runs[0].first) == i {
		return p.runs[0].parent
	}
	return p.records[i-1].key
}

// publish tells subscribers of events.
func (c *Catalog) publish() {
	c.log.Publish(c.events)
	c.events = c.events[:0]
}

func (k *class) stored(key, parent connector.Key) eventlog.Event {
	return eventlog.Event{
		Key: key, Parent: parent, Namespace: uint32(k.namespace.number), Shard: k.shard, Kind: uint8(store.EventStored),
	}
}

func (k *class) removed(key connector.Key) eventlog.Event {
	return eventlog.Event{Key: key, Namespace: uint32(k.namespace.number), Shard: k.shard, Kind: uint8(store.EventRemoved)}
}
