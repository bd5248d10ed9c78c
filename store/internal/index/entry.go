// Package index is the store's table in memory: which record is in which slot, how
// recently it was used and who holds it. It is compact (under 64 bytes a record), free of
// pointers, and its lookups neither allocate nor touch the disk.
package index

import (
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
)

// Ref names a slot: the position of its entry in the table. The owner of the table maps
// references to segments and slots.
type Ref uint32

// NoRef is no slot.
const NoRef = Ref(1<<32 - 1)

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
	_         uint16
	// use is the tick of the last use (high 32 bits) and the number of pins (low 32
	// bits); accessed atomically, under the read lock.
	use uint64
	// seq is the record's sequence number, 0 in an empty slot.
	seq uint64
	// parent is the slot of the chain's previous block, valid while that slot holds an
	// older record.
	parent Ref
	bytes  uint32 // payload size
}

const (
	entryBytes = 48
	tickShift  = 32
	pinMask    = 1<<tickShift - 1
	maxDepth   = 1<<16 - 1
)

func (e *entry) tick() uint32 { return uint32(atomic.LoadUint64(&e.use) >> tickShift) }
func (e *entry) pins() uint32 { return uint32(atomic.LoadUint64(&e.use)) }

// touch raises the tick and adds pins.
func (e *entry) touch(tick uint32, pins uint64) {
	for {
		old := atomic.LoadUint64(&e.use)
		next := max(old>>tickShift, uint64(tick))<<tickShift | (old&pinMask + pins)
		if old == next || atomic.CompareAndSwapUint64(&e.use, old, next) {
			return
		}
	}
}

func (e *entry) pin()   { atomic.AddUint64(&e.use, 1) }
func (e *entry) unpin() { atomic.AddUint64(&e.use, ^uint64(0)) }

// is reports whether the entry, which is not empty, holds the record id.
func (e *entry) is(id *ID) bool {
	return e.key == id.Key && e.namespace == id.Namespace && e.shard == id.Shard
}

// order is the eviction order: least recently used first, and of a chain used at one time
// its end first.
func order(tick uint32, depth uint16) uint64 {
	return uint64(tick)<<16 | uint64(maxDepth-depth)
}
