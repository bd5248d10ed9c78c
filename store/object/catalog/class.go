package catalog

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// maxNamespaces is what events can number, maxGroups bounds the memory of groups. Objects past these
	// are known, and not offered.
	maxNamespaces = 1 << 16
	maxGroups     = 1 << 16
	// objectSpace is what objects are hashed with, in the place of a class.
	objectSpace = 1 << 63
)

// namespace is a namespace that some object is of. It is never forgotten: events name it by its number.
type namespace struct {
	number uint16
	digest connector.NamespaceDigest
	shards map[connector.Shard]*shard
}

// shard has the records of a namespace's shard, by the size of their payloads.
type shard struct {
	classes []*class
	holds   []hold // changes with mu alone: an engine that registers does not wait for a change of the catalog
}

type shardKey struct {
	namespace connector.NamespaceDigest
	shard     connector.Shard
}

// hold is a size that look-ups are to find.
type hold struct{ bytes, times int }

// class is the records of one namespace, shard and payload size: there a key names one record.
type class struct {
	number    uint32
	namespace *namespace
	shard     connector.Shard
	siblings  *shard // it is one of its classes
	bytes     uint32 // of a payload
	offered   int64  // records
}

// group is what the objects of one kind have in common.
type group struct {
	class *class // nil of objects that are known by their id alone
	needs uint16
	codec uint8
}

// groupKey finds a group.
type groupKey struct {
	class uint32
	needs uint16
	codec uint8
}

func (k *class) hash(key *connector.Key) uint64 {
	return hashtable.Hash((*[16]byte)(key), uint64(k.number))
}

func (c *Catalog) objectHash(id *format.ObjectID) uint64 {
	return hashtable.Hash((*[16]byte)(id), objectSpace)
}

// hashOf is the hash of what a reference in the hash table is of.
func (c *Catalog) hashOf(at ref) uint64 {
	if o := c.row(at); o.is(isRow) {
		return c.objectHash(&o.id)
	}
	return c.classOf(at).hash(&c.record(at).key)
}

// classOf is the class of a record.
func (c *Catalog) classOf(at ref) *class { return c.groups[c.row(c.rowOf(at)).group].class }

// served is the class of a shard that look-ups find, or nil.
func (s *shard) served() *class {
	if len(s.holds) > 0 {
		return s.of(s.holds[0].bytes)
	}
	for _, k := range s.classes {
		if k.offered > 0 {
			return k
		}
	}
	return nil
}

func (s *shard) of(payloadBytes int) *class {
	for _, k := range s.classes {
		if int(k.bytes) == payloadBytes {
			return k
		}
	}
	return nil
}

// shard finds a shard, or nil.
func (c *Catalog) shard(ns connector.NamespaceDigest, s connector.Shard) *shard {
	if n := c.namespaces[ns]; n != nil && !c.closed {
		return n.shards[s]
	}
	return nil
}

// heldShard finds a shard that has objects, or is held for those that come, or nil.
func (c *Catalog) heldShard(ns connector.NamespaceDigest, s connector.Shard) *shard {
	return cmp.Or(c.shard(ns, s), c.heldShards[shardKey{ns, s}])
}

// addShard finds a shard or makes it known. It returns nil if there are too many namespaces. Both locks are
// held.
func (c *Catalog) addShard(ns connector.NamespaceDigest, s connector.Shard) (*namespace, *shard) {
	n := c.namespaces[ns]
	if n == nil {
		if len(c.digests) == maxNamespaces {
			return nil, nil
		}
		n = &namespace{number: uint16(len(c.digests)), digest: ns, shards: make(map[connector.Shard]*shard)}
		c.digests, c.namespaces[ns] = append(c.digests, ns), n
	}
	if n.shards[s] == nil {
		n.shards[s] = cmp.Or(c.heldShards[shardKey{ns, s}], new(shard))
		delete(c.heldShards, shardKey{ns, s})
	}
	return n, n.shards[s]
}

// groupOf is the number of an object's group, 0 if there are too many.
func (c *Catalog) groupOf(o *format.Object) uint32 {
	k := c.knownClass(o)
	if k != nil {
		if g, ok := c.groupByKey[groupKey{k.number, o.Needs, o.Codec}]; ok {
			return g
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.groups) == maxGroups {
		return 0
	}
	if k == nil {
		n, s := c.addShard(o.Namespace, o.Shard)
		if s == nil {
			return 0
		}
		k = &class{number: c.classes, namespace: n, shard: o.Shard, siblings: s, bytes: o.PayloadBytes}
		c.classes++
		s.classes = append(s.classes, k)
	}
	g := uint32(len(c.groups))
	c.groups = append(c.groups, group{k, o.Needs, o.Codec})
	c.groupByKey[groupKey{k.number, o.Needs, o.Codec}] = g
	return g
}

func (c *Catalog) knownClass(o *format.Object) *class {
	if s := c.shard(o.Namespace, o.Shard); s != nil {
		return s.of(int(o.PayloadBytes))
	}
	return nil
}

// PayloadBytes is the size of the payloads of a shard that look-ups find: the one that is held, else
// the first that there are records of; 0 if there are none.
func (c *Catalog) PayloadBytes(ns connector.NamespaceDigest, s connector.Shard) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	sh := c.heldShard(ns, s)
	switch {
	case sh == nil:
		return 0
	case len(sh.holds) > 0:
		return sh.holds[0].bytes
	}
	if k := sh.served(); k != nil {
		return int(k.bytes)
	}
	return 0
}

// HoldPayload has look-ups find records of a size until ReleasePayload. Of two sizes the first is served,
// and the other when that is released.
func (c *Catalog) HoldPayload(ns connector.NamespaceDigest, s connector.Shard, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.heldShard(ns, s)
	if sh == nil {
		sh = new(shard)
		c.heldShards[shardKey{ns, s}] = sh
	}
	for i := range sh.holds {
		if sh.holds[i].bytes == bytes {
			sh.holds[i].times++
			return
		}
	}
	sh.holds = append(sh.holds, hold{bytes, 1})
}

// ReleasePayload ends one HoldPayload.
func (c *Catalog) ReleasePayload(ns connector.NamespaceDigest, s connector.Shard, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	sh := c.heldShard(ns, s)
	if sh == nil {
		return
	}
	for i := range sh.holds {
		if sh.holds[i].bytes != bytes {
			continue
		}
		if sh.holds[i].times--; sh.holds[i].times == 0 {
			sh.holds = slices.Delete(sh.holds, i, i+1)
		}
		if len(sh.holds) == 0 {
			delete(c.heldShards, shardKey{ns, s})
		}
		return
	}
}

// Namespaces are those that a record is offered of.
func (c *Catalog) Namespaces() []connector.NamespaceDigest {
	c.mu.RLock()
	defer c.mu.RUnlock()
	var all []connector.NamespaceDigest
	for _, digest := range c.digests {
		if c.namespaces[digest].offers() {
			all = append(all, digest)
		}
	}
	return all
}

func (n *namespace) offers() bool {
	for _, s := range n.shards {
		for _, k := range s.classes {
			if k.offered > 0 {
				return true
			}
		}
	}
	return false
}
