package index

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/offheap"
)

// The system gives memory when it is first written to, and a huge page of it takes a virtual
// machine some milliseconds. Before records are added their entries' pages are therefore
// populated, and those of the hash table that they or the growth will soon write to, while
// the lock is not held. All of it is help and not needed: what is not populated is given as ever.

const (
	// pieceBytes are populated at one time.
	pieceBytes = 2 << 20
	// soonRecords before the table is full its next region is made.
	soonRecords = 4096
	// populateAhead is how far ahead of what is moved the next region is populated.
	populateAhead = 2 * pieceBytes
)

// populate makes ready for the insertion of records into the slots that slotOf names.
func (t *Table) populate(records int, slotOf func(int) Ref) {
	var missing [8]Ref // the first slot of a piece
	for {
		n := t.unpopulated(records, slotOf, missing[:])
		for _, ref := range missing[:n] {
			t.populateEntries(ref)
		}
		if n < len(missing) {
			break
		}
	}
	t.populateHash()
}

// unpopulated finds pieces of entries that are not populated.
func (t *Table) unpopulated(records int, slotOf func(int) Ref, missing []Ref) (n int) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return 0
	}
	last := NoRef
	for i := 0; i < records && n < len(missing); i++ {
		ref := slotOf(i)
		piece := pieceOf(ref)
		if atomic.LoadUint32(&t.populated[ref>>chunkShift])&(1<<piece) != 0 || ref>>chunkShift == last>>chunkShift && piece == pieceOf(last) {
			continue
		}
		missing[n], last = ref, ref
		n++
	}
	return n
}

// pieceOf is the piece of its chunk in which an entry ends.
func pieceOf(ref Ref) uint32 { return ((uint32(ref)&chunkMask+1)*entryBytes - 1) / pieceBytes }

func (t *Table) populateEntries(ref Ref) {
	t.mu.RLock()
	if t.closed {
		t.mu.RUnlock()
		return
	}
	chunk := t.chunks[ref>>chunkShift]
	t.mu.RUnlock()
	piece := pieceOf(ref)
	all := unsafe.Slice((*byte)(unsafe.Pointer(chunk)), chunkEntries*entryBytes)
	// Nothing goes wrong if the table is closed meanwhile: no byte changes.
	_ = offheap.Populate(all[piece*pieceBytes:][:pieceBytes])
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		atomic.OrUint32(&t.populated[ref>>chunkShift], 1<<piece)
	}
}

// populateHash makes the next region if it will be needed soon, populates what the growth will
// write to next, and gives back what it has left.
func (t *Table) populateHash() {
	for {
		c := t.hashChore()
		switch {
		case c.giveBack:
			t.giveBack()
		case c.part != nil:
			_ = offheap.Populate(c.part)
			t.mu.Lock()
			c.of.NotePopulated(len(c.part))
			t.mu.Unlock()
		case c.buckets > 0:
			t.makeAhead(c.buckets)
		default:
			return
		}
	}
}

// hashChore is what is to be done for the hash table's growth while the lock is not held.
type hashChore struct {
	giveBack bool
	part     []byte // to be populated
	of       *hashtable.Region
	buckets  int // of the region to be made
}

func (t *Table) hashChore() (c hashChore) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return hashChore{}
	}
	c.giveBack = t.hashes.Emptied != nil || t.hashes.GivesSome()
	c.of = t.hashes.Next
	until := populateAhead
	if c.of == nil {
		c.of = t.hashes.Ahead
	} else {
		until += int(float64(c.of.Bytes()) * float64(t.hashes.Moved) / float64(len(t.hashes.Region.Buckets)))
	}
	if c.of != nil {
		c.part = c.of.Unpopulated(until, pieceBytes)
	}
	room := len(t.hashes.Region.Buckets) * hashtable.BucketSlots
	if c.of == nil && (t.count+soonRecords)*hashtable.MaxLoadDen > room*hashtable.MaxLoadNum {
		c.buckets = t.hashes.NextBuckets()
	}
	return c
}

// makeAhead maps the region that the table will grow into.
func (t *Table) makeAhead(buckets int) {
	r := hashtable.MapRegion(buckets)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.hashes.Next != nil || t.hashes.Ahead != nil || t.hashes.NextBuckets() != buckets {
		r.Free() // another goroutine grew the table
	} else {
		t.hashes.Ahead = r
	}
}
