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
	idle [][]tierLease // lists for use again
}

// tierLease is a lease of one tier.
type tierLease struct {
	tier int // its place in the chain
	id   LeaseID
}

// maxIdleChainLeases bounds the lists kept.
const maxIdleChainLeases = 256

// Lookup finds the longest prefix that the tiers have together. From each block that a tier does
// not have it goes on with the fastest one that has it. The shards of a block may be in several
// tiers.
func (c *Chain) Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (int, LeaseID) {
	if len(c.tiers) == 1 {
		return c.Tier.Lookup(ns, shards, chain, ttl)
	}
	list := c.leases.begin()
	blocks, ended := 0, -1 // the tier that has no more
	for blocks < len(chain) {
		var n int
		if n, list = c.lookup(ended, ns, shards, chain[blocks:], ttl, list); n > 0 {
			ended = list[len(list)-1].tier
		} else {
			n, list = c.lookupShards(ns, shards, chain[blocks:blocks+1], ttl, list)
			ended = -1
		}
		if n == 0 {
			break
		}
		blocks += n
	}
	id := c.leases.hold(list)
	if blocks == 0 && id != 0 { // some shards of the first block
		c.Release(id)
		id = 0
	}
	return blocks, id
}

// lookup asks for the leading blocks of the fastest tier that has any, leaving out the tier that
// has just ended, and appends the lease.
func (c *Chain) lookup(
	ended int, ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration, list []tierLease,
) (int, []tierLease) {
	for i, t := range c.tiers {
		if i == ended {
			continue
		}
		if n, id := t.Lookup(ns, shards, chain, ttl); n > 0 {
			return n, append(list, tierLease{i, id})
		}
	}
	return 0, list
}

// lookupShards looks for the shards of one block one by one. It returns 1 if all are there.
func (c *Chain) lookupShards(
	ns connector.NamespaceDigest, shards []connector.Shard, block []connector.Key, ttl time.Duration, list []tierLease,
) (int, []tierLease) {
	if len(shards) == 1 {
		return 0, list // as lookup has seen
	}
	n := 0
	for i := range shards {
		if n, list = c.lookup(-1, ns, shards[i:i+1], block, ttl, list); n == 0 {
			break
		}
	}
	return n, list
}

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

// begin returns an empty list.
func (l *chainLeases) begin() []tierLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.idle)
	if n == 0 {
		return nil
	}
	list := l.idle[n-1]
	l.idle = l.idle[:n-1]
	return list
}

// recycle takes a list back. l.mu is held.
func (l *chainLeases) recycle(list []tierLease) {
	if len(l.idle) < maxIdleChainLeases && cap(list) > 0 {
		l.idle = append(l.idle, list[:0])
	}
}

// hold gives a list an id, 0 if it is empty.
func (l *chainLeases) hold(list []tierLease) LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(list) == 0 {
		l.recycle(list)
		return 0
	}
	l.next++
	l.held[l.next] = list
	return l.next
}
