package catalog

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

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
