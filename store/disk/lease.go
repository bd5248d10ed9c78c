package disk

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/lease"
)

// janitorInterval is how often leases that ran out are looked for.
const janitorInterval = 100 * time.Millisecond

// Lookup implements [store.Leases]. A lease holds for [Options].LeaseMax at most, and nothing is found
// while [Options].MaxLeases are held. Lookup never touches the disk, never waits for a writer's I/O
// and does not allocate once its scratch memory has grown to the longest chain.
func (s *Store) Lookup(ns connector.NamespaceDigest, shards []connector.Shard, chain []connector.Key, ttl time.Duration) (blocks int, id store.LeaseID) {
	s.count.Lookups.Add(1)
	s.count.LookupBlocks.Add(uint64(len(chain)))
	number, known := s.namespaces.Number(ns)
	if len(chain) == 0 || len(shards) == 0 || !known || s.purges.Holds(number) {
		return 0, 0
	}
	e := s.leases.Begin()
	if e == nil {
		return 0, 0
	}
	blocks, e.Refs = s.table.Prefix(number, shards, chain, e.Refs[:0])
	s.count.HitBlocks.Add(uint64(blocks))
	if blocks == 0 {
		s.leases.Recycle(e)
		return 0, 0
	}
	now := s.opts.clock()
	s.namespaces.Hit(number, blocks, now)
	if s.purges.HoldsTenant(s.table.Hit(e.Refs[0], blocks, now)) {
		s.endLease(e)
		return 0, 0
	}
	return blocks, s.leases.Hold(e, now.Add(s.clampLease(ttl)))
}

func (s *Store) clampLease(ttl time.Duration) time.Duration {
	return max(0, min(ttl, s.opts.LeaseMax))
}

// Touch implements [store.Leases].
func (s *Store) Touch(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key) {
	if number, known := s.namespaces.Number(ns); known {
		s.table.Touch(number, shard, keys)
	}
}

// Renew implements [store.Leases].
func (s *Store) Renew(id store.LeaseID, ttl time.Duration) bool {
	now := s.opts.clock()
	return s.leases.Renew(id, now, now.Add(s.clampLease(ttl)))
}

// Release implements [store.Leases].
func (s *Store) Release(id store.LeaseID) {
	if e := s.leases.End(id); e != nil {
		s.endLease(e)
	}
}

func (s *Store) endLease(e *lease.Lease) {
	s.table.Unpin(e.Refs...)
	s.leases.Recycle(e)
}

// janitor ends leases that ran out and lets slots be tried again. It waits for nothing
// else: what gives up segments waits for leases to end.
func (s *Store) janitor(ctx context.Context) {
	tick := time.NewTicker(janitorInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			s.expireLeases()
			s.space.CoolDown(time.Now())
		}
	}
}

// expireLeases ends the leases whose deadline has passed.
func (s *Store) expireLeases() {
	now := s.opts.clock()
	for e := s.leases.Expired(now); e != nil; e = s.leases.Expired(now) {
		s.endLease(e)
	}
}

// Present implements [store.Level].
func (s *Store) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	number, known := s.namespaces.Number(ns)
	if !known {
		return
	}
	id := index.ID{Namespace: number, Shard: shard}
	for i := range keys {
		id.Key = keys[i]
		if _, ok := s.table.Get(id, false); ok {
			at[i] = true
		}
	}
}

// resolve is a record's id as the index has it. It reports false where the namespace is not
// known.
func (s *Store) resolve(id *store.RecordID) (index.ID, bool) {
	number, known := s.namespaces.Number(id.Namespace)
	return index.ID{Namespace: number, Shard: id.Shard, Key: id.Key}, known
}

// recordID is the id of a record that the index has as id.
func (s *Store) recordID(id index.ID) store.RecordID {
	return store.RecordID{Namespace: s.namespaces.Digest(id.Namespace), Shard: id.Shard, Key: id.Key}
}
