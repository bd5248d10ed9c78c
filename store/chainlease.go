package store

import (
	"sync"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// chainLeases are the leases of a chain of several tiers: each is a list of leases of the tiers.
type chainLeases struct {
	mu   sync.Mutex
	next LeaseID
	held map[LeaseID][]tierLease
	// Lists and memory of look-ups for use again.
	idle    [][]tierLease
	lookups []*chainLookup
}

// tierLease is a lease of one tier.
type tierLease struct {
	tier int // its place in the chain
	id   LeaseID
}

const (
	// maxIdleChainLeases bounds the lists that are kept.
	maxIdleChainLeases = 256
	// maxIdleLookups bounds the look-ups whose memory is kept, maxIdleCells what one of them may have: enough
	// for 64 shards.
	maxIdleLookups = 16
	maxIdleCells   = 64 * lookupBlocks
)

// Touch counts as a use of the records in every tier that has them.
func (c *Chain) Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) {
	for _, t := range c.tiers {
		t.Touch(ns, shard, keys)
	}
}

// Renew gives a lease ttl from now. It reports false if a part of it has ended.
func (c *Chain) Renew(id LeaseID, ttl time.Duration) bool {
	if len(c.tiers) == 1 {
		return c.Tier.Renew(id, ttl)
	}
	l := &c.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	all := len(l.held[id]) > 0
	for _, part := range l.held[id] {
		all = c.tiers[part.tier].Renew(part.id, ttl) && all
	}
	return all
}

// Release ends a lease.
func (c *Chain) Release(id LeaseID) {
	if len(c.tiers) == 1 {
		c.Tier.Release(id)
		return
	}
	l := &c.leases
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.held[id]
	delete(l.held, id)
	for _, part := range list {
		c.tiers[part.tier].Release(part.id)
	}
	l.recycle(list)
}

// begin returns a look-up with an empty list.
func (l *chainLeases) begin() *chainLookup {
	l.mu.Lock()
	defer l.mu.Unlock()
	var look *chainLookup
	if n := len(l.lookups); n > 0 {
		look, l.lookups = l.lookups[n-1], l.lookups[:n-1]
	} else {
		look = new(chainLookup)
	}
	if n := len(l.idle); n > 0 {
		look.list, l.idle = l.idle[n-1], l.idle[:n-1]
	}
	return look
}

// hold ends a look-up, and gives its leases an id, 0 if there are none.
func (l *chainLeases) hold(look *chainLookup) LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := look.list
	look.list = nil
	if len(l.lookups) < maxIdleLookups && cap(look.cells) <= maxIdleCells {
		l.lookups = append(l.lookups, look)
	}
	if len(list) == 0 {
		l.recycle(list)
		return 0
	}
	l.next++
	l.held[l.next] = list
	return l.next
}

// recycle takes a list back. l.mu is held.
func (l *chainLeases) recycle(list []tierLease) {
	if len(l.idle) < maxIdleChainLeases && cap(list) > 0 {
		l.idle = append(l.idle, list[:0])
	}
}
