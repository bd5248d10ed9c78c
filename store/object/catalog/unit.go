package catalog

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/object/format"
)

// An object is a row of two units, its records and its runs, a unit each, side by side in a slab:
//
//	row, row, record 0, record 1, ..., run 0, run 1, ...
//
// So one reference of 4 bytes names a record, its neighbours and its object, and the next record of a chain
// is most often the next unit.
type ref = hashtable.Ref

// unitBytes is the size of a record and of a run; a row has rowUnits of it.
const (
	unitBytes = 20
	rowUnits  = 2
)

// row is what is known of an object. What has no comment on it changes with both locks held.
type row struct {
	id    format.ObjectID
	depth uint16 // blocks before its first record in the chain, the least of its runs
	flags uint16
	group uint32
	used  uint32 // when it was last used, or removed; atomic
	pins  uint32 // atomic
	bytes uint32
	// records and runs are how many it has, whether their units are there or not.
	records, runs uint16
}

// record is a record of an object. The record before, or a run, has its parent.
type record struct {
	key   connector.Key
	start uint16 // of its slot, in units of the format
	at    uint16 // its ordinal, and flags
}

// run is a stretch of consecutive blocks.
type run struct {
	parent       connector.Key
	first, depth uint16
}

// Flags of rows. One with none of lost, leaving, gone and out is offered.
const (
	isRow   = 1 << 15 // never set in a record
	isDead  = 1 << 14 // nothing refers to it, its units are waste
	isBare  = 1 << 13 // it has no units of records and runs
	isKnown = 1 << 12 // it was added: else only its removal is known
	isOut   = 1 << 11 // its records are not in the hash table, and of no use
	isGone  = 1 << 10 // its bytes were deleted
	// isLeaving is set once it is removed, isLost once this node found it missing or damaged.
	isLeaving = 1 << 9
	isLost    = 1 << 8
	causeMask = 1<<8 - 1

	notOffered = isDead | isOut | isGone | isLeaving | isLost
	// notReadable objects are not even read with a lease.
	notReadable = isDead | isOut | isGone | isLost
)

// Flags of records, beside their ordinal.
const (
	// isTwin is set if another object offered the same record at some time.
	isTwin = 1 << 14
	// isLoose is set if the record is not in the hash table, as there are enough like it.
	isLoose     = 1 << 13
	ordinalMask = 1<<13 - 1
)

// Every ordinal has room, and layouts are what references count on.
var (
	_ [ordinalMask + 1 - format.MaxObjectRecords]struct{}
	_ [rowUnits*unitBytes - unsafe.Sizeof(row{})]struct{}
	_ [unsafe.Sizeof(row{}) - rowUnits*unitBytes]struct{}
	_ [unitBytes - unsafe.Sizeof(record{})]struct{}
	_ [unitBytes - unsafe.Sizeof(run{})]struct{}
	_ [unsafe.Offsetof(row{}.flags) - unsafe.Offsetof(record{}.at)]struct{}
)

func (r *record) ordinal() int { return int(r.at & ordinalMask) }

func (o *row) offered() bool       { return o.flags&notOffered == 0 }
func (o *row) readable() bool      { return o.flags&notReadable == 0 }
func (o *row) is(flag uint16) bool { return o.flags&flag != 0 }
func (o *row) pinned() bool        { return atomic.LoadUint32(&o.pins) > 0 }
func (o *row) pin()                { atomic.AddUint32(&o.pins, 1) }
func (o *row) unpin()              { atomic.AddUint32(&o.pins, ^uint32(0)) }
func (o *row) lastUse() uint32     { return atomic.LoadUint32(&o.used) }

// content is how many units its records and runs take where they are there.
func (o *row) content() int { return int(o.records) + int(o.runs) }

// units is what it takes in its slab.
func (o *row) units() int {
	if o.is(isBare) {
		return rowUnits
	}
	return rowUnits + o.content()
}

// liveUnits is how many of its units are of use.
func (o *row) liveUnits() int {
	if o.is(isBare | isOut) {
		return rowUnits
	}
	return rowUnits + o.content()
}

// useAt notes a use, unless a later one is known. It reports whether it did.
func (o *row) useAt(when uint32) bool {
	for {
		old := o.lastUse()
		if old >= when {
			return false
		}
		if atomic.CompareAndSwapUint32(&o.used, old, when) {
			return true
		}
	}
}
