// Package index is the store's table in memory: which record is in which slot, how
// recently it was used and who holds it. It is compact (under 60 bytes a record, or 62 with tenants), nearly free
// of pointers, and its lookups neither allocate nor touch the disk. Nothing that it does
// holds its lock for long, however large it is.
package index

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/hashtable"
)

// Ref names a slot: the position of its entry in the table. The owner of the table maps
// references to segments and slots.
type Ref = hashtable.Ref

// NoRef is no slot.
const NoRef = hashtable.NoRef

// ID is what a record is found by.
type ID struct {
	Namespace uint16
	Shard     connector.Shard
	Key       connector.Key
}

// entry is one slot's state, 48 bytes. A snapshot holds these bytes as they are.
type entry struct {
	// What a lookup looks at and writes comes first: most often it is in one cache line.
	key       connector.Key
	namespace uint16
	shard     connector.Shard
	depth     uint16 // blocks before this one in its chain, saturating
	flags     uint16 // see unsure and pending
	use       recency.Use
	// seq is the record's sequence number, 0 in an empty slot.
	seq uint64
	// parent is the slot of the chain's previous block, valid while that slot holds an
	// older record and the entry is not pending.
	parent Ref
	bytes  uint32 // payload size
}

const (
	entryBytes = 48
	maxDepth   = 1<<16 - 1
)

func (e *entry) tick() uint32                   { return e.use.Tick() }
func (e *entry) pins() uint32                   { return e.use.Pins() }
func (e *entry) pin()                           { e.use.Pin() }
func (e *entry) unpin()                         { e.use.Unpin() }
func (e *entry) touch(tick uint32, pins uint64) { e.use.Touch(tick, pins) }

const (
	// pending is set in flags while the parent is known by its hash alone: parent, depth
	// and the other bits of flags then hold the hash, less its lowest bit.
	pending = 1 << 15
	// unsure is set, in an entry that is not pending, while an ancestor is or was: the
	// depth has still to be found.
	unsure = 1
)

func (e *entry) isPending() bool { return e.flags&pending != 0 }

// blocksBefore is the depth, 0 while it cannot be known.
func (e *entry) blocksBefore() uint16 {
	if e.isPending() {
		return 0
	}
	return e.depth
}

// await makes the entry's parent the record whose identity has that hash.
func (e *entry) await(hash uint64) {
	hash >>= 1
	e.parent, e.depth, e.flags = Ref(hash), uint16(hash>>32), uint16(hash>>48)|pending
}

// awaited is the hash that await was given, less its lowest bit.
func (e *entry) awaited() uint64 {
	return (uint64(e.parent) | uint64(e.depth)<<32 | uint64(e.flags&^pending)<<48) << 1
}

// place puts the entry below a parent, or at the head of a chain if parent is nil.
func (e *entry) place(ref Ref, parent *entry) {
	e.parent, e.depth, e.flags = ref, 0, 0
	if parent == nil {
		return
	}
	e.depth = parent.childDepth()
	if parent.flags != 0 {
		e.flags = unsure
	}
}

func (e *entry) childDepth() uint16 { return min(e.blocksBefore(), maxDepth-1) + 1 }

// is reports whether the entry, which is not empty, holds the record id.
func (e *entry) is(id *ID) bool {
	return e.key == id.Key && e.namespace == id.Namespace && e.shard == id.Shard
}
