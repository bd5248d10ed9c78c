package index

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvconn/kvconn/store/disk/index/slotrange"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/offheap"
)

const (
	chunkShift   = 17
	chunkEntries = 1 << chunkShift // 6 MiB: three huge pages
	chunkMask    = chunkEntries - 1
)

// Table maps identities to slots. Lookups share a read lock that no one holds across
// I/O; insertions and removals take it for some tens of microseconds at a time.
type Table struct {
	clock   atomic.Uint64
	agingAt atomic.Uint64 // the tick at which entries are to be aged
	aging   sync.Mutex    // held while they are; guards aged
	aged    Ref           // the next to be aged
	// horizon is the tick of the last use of what was evicted last.
	horizon atomic.Uint64

	mu     sync.RWMutex
	closed bool
	chunks []*[chunkEntries]entry
	// populated has a bit for each piece of a chunk; set under the read lock.
	populated []uint32
	hashes    hashtable.Growth
	hidden    map[Ref]bool // slots of records that are found no more and not removed yet

	limit Ref            // references handed out end here
	spare slotrange.List // those given back before it
	count int
	bytes int64 // payload bytes of all records
	kept  Kept
	// tenants keeps count of whose they are.
	tenants *tenants.Ledger

	cold cold
}

// Found is a record that a lookup found.
type Found struct {
	Ref   Ref
	Seq   uint64
	Bytes uint32
	Depth uint16
}

// New returns an empty table. Close gives its memory back.
func New() *Table {
	t := new(Table)
	t.clock.Store(clockStart)
	t.horizon.Store(clockStart)
	t.hashes.Init()
	t.cold.classes = make(map[int64]*coldClass)
	t.hidden, t.tenants = make(map[Ref]bool), tenants.New()
	return t
}

func (t *Table) entry(r Ref) *entry { return &t.chunks[r>>chunkShift][r&chunkMask] }

// Range is a run of slots.
type Range = slotrange.Range

// AddSlots hands out references for a run of empty slots.
func (t *Table) AddSlots(slots uint32) (Ref, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if base, ok := t.spare.Take(slots); ok {
		return base, nil
	}
	base := t.limit
	end := uint64(base) + uint64(slots)
	if end >= uint64(NoRef) {
		return NoRef, errors.New("index: out of slot references")
	}
	if err := t.reserve(end); err != nil {
		return NoRef, err
	}
	t.limit = Ref(end)
	return base, nil
}

// reserve maps memory for the entries of the slots up to end. Pages are made when they are
// written to.
func (t *Table) reserve(end uint64) error {
	for uint64(len(t.chunks))<<chunkShift < end {
		b, err := offheap.Map(chunkEntries * entryBytes)
		if err != nil {
			return err
		}
		if err := t.tenants.Grow(); err != nil { // first: it may have more than the table, not less
			return errors.Join(err, offheap.Unmap(b))
		}
		t.chunks = append(t.chunks, (*[chunkEntries]entry)(unsafe.Pointer(unsafe.SliceData(b))))
		t.populated = append(t.populated, 0)
		t.cold.places = append(t.cold.places, nil)
	}
	return nil
}

// DropSlots takes back the references of a run of slots, which must be empty and not
// tracked.
func (t *Table) DropSlots(base Ref, slots uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare.Give(Range{Base: base, Slots: slots})
	t.limit = t.spare.Trim(t.limit)
}

// Close unmaps the table. Every method still answers, as if it were empty.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, c := range t.chunks {
		_ = offheap.Unmap(unsafe.Slice((*byte)(unsafe.Pointer(c)), chunkEntries*entryBytes))
	}
	t.hashes.Free()
	t.chunks, t.limit, t.spare, t.count, t.bytes = nil, 0, nil, 0, 0
	t.tenants.Close()
	t.cold.places, t.cold.byNumber, t.cold.classes = nil, nil, make(map[int64]*coldClass)
}

// Len is the number of records, PayloadBytes the sum of their payloads.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count
}

// Tenants keeps count of whose the records are.
func (t *Table) Tenants() *tenants.Ledger { return t.tenants }

// PayloadBytes is the sum of the payload sizes.
func (t *Table) PayloadBytes() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.bytes
}

// MemoryBytes is what the table occupies for the slots in use.
func (t *Table) MemoryBytes() int64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return int64(t.limit)*entryBytes + t.hashes.Bytes() + t.cold.memoryBytes() + t.tenants.MemoryBytes(int64(t.limit)) + int64(unsafe.Sizeof(*t))
}
