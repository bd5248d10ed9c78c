package object

import (
	"context"
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/catalog"
)

// expireEvery is how often leases that have run out are looked for.
const expireEvery = 100 * time.Millisecond

// lease keeps objects readable.
type lease struct {
	pins  catalog.Pins
	until time.Time
}

// leases are those in force.
type leases struct {
	most int
	mu   sync.Mutex
	next store.LeaseID
	held map[store.LeaseID]*lease
	idle []*lease // for use again
}

func (l *leases) init(most int) { l.most, l.held = most, make(map[store.LeaseID]*lease) }

// begin returns an empty lease, nil if there are too many.
func (l *leases) begin() *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle)
	switch {
	case len(l.held) >= l.most:
		return nil
	case n == 0:
		return new(lease)
	}
	e := l.idle[n-1]
	l.idle = l.idle[:n-1]
	return e
}

func (l *leases) hold(e *lease) store.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.held[l.next] = e
	return l.next
}

// end takes a lease out, nil if there is none of that id.
func (l *leases) end(id store.LeaseID) *lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.held[id]
	delete(l.held, id)
	return e
}

// maxIdleLeases bounds the leases that are kept for use again.
const maxIdleLeases = 256

// recycle lets go of what a lease pins, and keeps it.
func (l *leases) recycle(e *lease, c *catalog.Catalog) {
	c.Unpin(&e.pins)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < maxIdleLeases {
		l.idle = append(l.idle, e)
	}
}

// expire ends leases that have run out, until ctx ends.
func (l *leases) expire(ctx context.Context, c *catalog.Catalog) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		var over []*lease
		l.mu.Lock()
		for id, e := range l.held {
			if e.until.Before(now) {
				delete(l.held, id)
				over = append(over, e)
			}
		}
		l.mu.Unlock()
		for _, e := range over {
			l.recycle(e, c)
		}
	}
}

// Lookup implements [store.Leases]. A lease holds for [Options].LeaseMax at most, and nothing is found while
// [Options].MaxLeases are in force.
func (t *Tier) Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (int, store.LeaseID) {
	t.follower.Wanted()
	if len(chain) == 0 || len(shards) == 0 || !t.Offers() {
		return 0, 0
	}
	e := t.leases.begin()
	if e == nil {
		return 0, 0
	}
	blocks := t.catalog.Prefix(ns, shards, chain, &e.pins)
	if blocks == 0 {
		t.leases.recycle(e, t.catalog)
		return 0, 0
	}
	e.until = t.until(e, time.Now(), ttl)
	return blocks, t.leases.hold(e)
}

// until is when a lease that is taken or renewed now ends.
func (t *Tier) until(e *lease, now time.Time, ttl time.Duration) time.Time {
	until := now.Add(max(0, min(ttl, t.o.LeaseMax)))
	if most := e.pins.Until(); !most.IsZero() && most.Before(until) {
		return most
	}
	return until
}

// Renew implements [store.Leases]. A lease is not renewed past half of the grace: the bytes may go then.
func (t *Tier) Renew(id store.LeaseID, ttl time.Duration) bool {
	t.leases.mu.Lock()
	defer t.leases.mu.Unlock()
	e, now := t.leases.held[id], time.Now()
	if e == nil || e.until.Before(now) || t.closed.Load() {
		return false
	}
	e.until = t.until(e, now, ttl)
	return e.until.After(now)
}

// Release implements [store.Leases].
func (t *Tier) Release(id store.LeaseID) {
	if e := t.leases.end(id); e != nil {
		t.leases.recycle(e, t.catalog)
	}
}

// Touch implements [store.Leases].
func (t *Tier) Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) {
	t.catalog.Used(ns, []connector.Shard{shard}, keys)
}

// uses are those that look-ups of faster tiers tell: one is taken in while others are dropped, since an
// object's use counts once in hours.
type uses struct {
	ready chan struct{}

	mu     sync.Mutex
	full   bool
	ns     connector.NamespaceDigest
	shards []connector.Shard
	keys   []connector.Key
}

// Used implements [store.UseListener].
func (t *Tier) Used(ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key) {
	t.follower.Wanted()
	u := &t.uses
	if !u.mu.TryLock() {
		return
	}
	if !u.full {
		u.full, u.ns = true, ns
		u.shards, u.keys = append(u.shards[:0], shards...), append(u.keys[:0], keys...)
		u.ready <- struct{}{}
	}
	u.mu.Unlock()
}

// takeUses has the catalog know uses, until the tier closes.
func (t *Tier) takeUses() {
	u := &t.uses
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-u.ready:
		}
		u.mu.Lock()
		t.catalog.Used(u.ns, u.shards, u.keys)
		u.full = false
		u.mu.Unlock()
	}
}
