// Package segment keeps the segment files of a store: their slots, what they may occupy, and how room
// is made.
package segment

import (
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/record"
)

// Prefix and Suffix are what the names of segment files begin and end with; between them is the
// number.
const (
	Prefix = "seg-"
	Suffix = ".kv"
)

// IDOf returns the number of the segment whose file has that name.
func IDOf(name string) (uint32, bool) {
	digits, prefixed := strings.CutPrefix(name, Prefix)
	digits, suffixed := strings.CutSuffix(digits, Suffix)
	id, err := strconv.ParseUint(digits, 10, 32)
	return uint32(id), prefixed && suffixed && err == nil
}

// SlotBytes is the size of the slot that a payload needs.
func SlotBytes(payloadBytes int) int64 {
	return int64(record.HeaderBytes + fsio.AlignUp(payloadBytes))
}

// RefAlign is what the first reference of every segment is a multiple of, so that a table
// with one entry for that many slots leads from a reference to its segment.
const RefAlign = 64

// Segment is an open segment file.
type Segment struct {
	format.Segment
	File fsio.File
	Path string
	// Base is the reference of the first slot.
	Base     index.Ref
	physical int64 // bytes set aside for it under the cap
	class    *class
	// made is the index's clock when the segment was made, 0 if it was there at open.
	made uint64
	// dirty is set when a payload was written since the last barrier.
	dirty atomic.Bool
	// writing is the number of slots given out and not committed yet.
	writing atomic.Int64
	// Noted is the generation of the journal that surely has the segment; the committer's.
	Noted uint64
	// retired segments give out no slots, bad is how many of the slots are set aside;
	// both are guarded by the mutex of the space.
	retired bool
	bad     int
	// withheld segments give out no slots and lose no records to others of their class:
	// unread ones until their headers have been read, frozen ones, whose file cannot be put
	// right, as long as the store is open.
	withheld, unread atomic.Bool
	// Frozen never changes.
	Frozen bool
}

// Range are the references of the segment's slots.
func (g *Segment) Range() index.Range { return index.Range{Base: g.Base, Slots: g.Slots} }

// MarkDirty notes that a payload is being written, or was.
func (g *Segment) MarkDirty() { g.dirty.Store(true) }

// Settled notes that a slot which was given out is committed or will not be.
func (g *Segment) Settled() { g.writing.Add(-1) }

// IsUnread reports whether the headers of the segment have not all been read.
func (g *Segment) IsUnread() bool { return g.unread.Load() }

// Location is where a slot is.
func (g *Segment) Location(ref index.Ref) journal.Location {
	return journal.Location{Segment: g.ID, Slot: uint32(ref - g.Base)}
}

// RoundRefs rounds a number of slots up to a multiple of [RefAlign].
func RoundRefs(slots uint32) uint32 { return (slots + RefAlign - 1) &^ (RefAlign - 1) }

// Run returns the nth run of slots of segments that are divided into runs of at most that many
// slots. Past the last g is nil.
func Run(segments []*Segment, most uint32, n int64) (g *Segment, first, slots uint32) {
	for _, g := range segments {
		runs := (int64(g.Slots) + int64(most) - 1) / int64(most)
		if n < runs {
			first = uint32(n) * most
			return g, first, min(most, g.Slots-first)
		}
		n -= runs
	}
	return nil, 0, 0
}
