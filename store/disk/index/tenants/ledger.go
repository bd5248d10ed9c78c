// Package tenants keeps count of whose records an index has. A tenant has a number of two bytes, and a slot that of its
// record. A store whose records all have no tenant touches no memory for it.
package tenants

import (
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/offheap"
)

// ID is a tenant: the first half of a [connector.ScopeDigest]. The zero ID stands for records of no tenant.
type ID [8]byte

// Unknown is whose records of format 1 are: it does not say. Rest is that of all that come when every number is taken.
var (
	Unknown = ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	Rest    = ID{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe}
)

// Of is the tenant of a scope.
func Of(s connector.ScopeDigest) ID { return ID(s[:8]) }

// String returns the 16 hexadecimal digits of a tenant.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Number stands for a tenant that has records. It is given to another when the last one is gone.
type Number uint16

// The numbers that are always given.
const (
	none Number = iota
	unknown
	rest
	firstFree
)

// ChunkSlots is how many slots one mapping is for.
const ChunkSlots = 1 << 17

const (
	numberBytes = 2
	// mostNumbers bounds the tenants that are told apart: what two bytes can say.
	mostNumbers = 1 << 16
)

// Tenant is what an index has of one.
type Tenant struct {
	ID      ID
	Records int64
	// Bytes are those of slots: payloads, each rounded up to 4096 bytes, and as much for a header.
	Bytes int64
	// Pinned are those of them that an administrator wants kept.
	Pinned int64
	// Hits are blocks that look-ups have found, LastHit when the last was, since the opening. They are lost with the
	// tenant's last record.
	Hits    uint64
	LastHit time.Time
}

// Ledger keeps count. Numbers of slots are guarded by the lock of the index; all else is safe for concurrent use.
type Ledger struct {
	slots []*[ChunkSlots]Number

	mu      sync.Mutex
	tenants []Tenant // by number
	numbers map[ID]Number
	free    []Number
	most    int  // of numbers; tests make it small
	touched bool // some slot has or had a record of a tenant: only then the numbers of slots mean something
	kept    map[ID]bool
}

// New returns an empty ledger.
func New() *Ledger {
	l := &Ledger{numbers: make(map[ID]Number), kept: make(map[ID]bool), most: mostNumbers}
	for _, id := range []ID{none: {}, unknown: Unknown, rest: Rest} {
		l.numbers[id] = Number(len(l.tenants))
		l.tenants = append(l.tenants, Tenant{ID: id})
	}
	return l
}

// Grow makes room for the next [ChunkSlots] slots. Pages are made when they are written to.
func (l *Ledger) Grow() error {
	b, err := offheap.Map(ChunkSlots * numberBytes)
	if err != nil {
		return err
	}
	l.slots = append(l.slots, (*[ChunkSlots]Number)(unsafe.Pointer(unsafe.SliceData(b))))
	return nil
}

// Close gives the memory of slots back.
func (l *Ledger) Close() {
	for _, c := range l.slots {
		_ = offheap.Unmap(unsafe.Slice((*byte)(unsafe.Pointer(c)), ChunkSlots*numberBytes))
	}
	l.slots = nil
}

func (l *Ledger) slot(ref uint32) *Number { return &l.slots[ref/ChunkSlots][ref%ChunkSlots] }

// SlotBytes is what a record takes on disk: a header, and its payload in whole pages.
func SlotBytes(payload uint32) int64 {
	const pageBytes = 4096
	return pageBytes + (int64(payload)+pageBytes-1)&^(pageBytes-1)
}

// Add notes whose record is in a slot that was empty, and how many bytes the slot has.
func (l *Ledger) Add(ref uint32, id ID, bytes int64) {
	if n, used := l.add(id, bytes); used {
		*l.slot(ref) = n
	}
}

// add counts a record. Until a tenant is used the numbers of slots are not looked at: their pages are not there.
func (l *Ledger) add(id ID, bytes int64) (n Number, used bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ok := l.numbers[id]
	if !ok {
		n = l.number(id)
	}
	l.touched = l.touched || n != none
	t := &l.tenants[n]
	t.Records++
	t.Bytes += bytes
	return n, l.touched
}

// number gives a tenant a number. mu is held.
func (l *Ledger) number(id ID) Number {
	switch {
	case len(l.free) > 0:
		n := l.free[len(l.free)-1]
		l.free = l.free[:len(l.free)-1]
		l.tenants[n] = Tenant{ID: id}
		l.numbers[id] = n
		return n
	case len(l.tenants) >= l.most:
		return rest
	}
	l.tenants = append(l.tenants, Tenant{ID: id})
	l.numbers[id] = Number(len(l.tenants) - 1)
	return l.numbers[id]
}

// Keep gives a tenant a number until [Ledger.Unkeep], if one is left, whether or not it has records.
func (l *Ledger) Keep(id ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept[id] = true
	if _, ok := l.numbers[id]; !ok {
		l.number(id)
	}
}

// Unkeep lets the tenant's number go to another once the tenant has no records.
func (l *Ledger) Unkeep(id ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.kept, id)
	if n, ok := l.numbers[id]; ok && n >= firstFree && l.tenants[n].Records == 0 {
		delete(l.numbers, id)
		l.free = append(l.free, n)
	}
}

// Over are the tenants that have more bytes than limit says, where that is not 0.
func (l *Ledger) Over(limit func(ID) int64) (over []ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.tenants {
		if t := &l.tenants[i]; t.Records > 0 {
			if most := limit(t.ID); most > 0 && t.Bytes > most {
				over = append(over, t.ID)
			}
		}
	}
	return over
}

// Remove notes that a slot is empty.
func (l *Ledger) Remove(ref uint32, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := none
	if l.touched {
		n = *l.slot(ref)
	}
	t := &l.tenants[n]
	t.Records--
	t.Bytes -= bytes
	if t.Records == 0 && n >= firstFree && !l.kept[t.ID] {
		delete(l.numbers, t.ID)
		l.free = append(l.free, n)
	}
}

// Pin notes that the record of a slot, with that many bytes, is kept from being evicted, or is no more: bytes are negative then.
func (l *Ledger) Pin(ref uint32, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := none
	if l.touched {
		n = *l.slot(ref)
	}
	l.tenants[n].Pinned += bytes
}

// At is the number of the tenant whose record a slot has or had.
func (l *Ledger) At(ref uint32) Number { return *l.slot(ref) }

// Chunk is the numbers of the slots from ref on, up to the end of their mapping.
func (l *Ledger) Chunk(ref uint32) []Number { return l.slots[ref/ChunkSlots][ref%ChunkSlots:] }

// Hit notes that a look-up has found blocks of the tenant with that number, and returns which it is.
func (l *Ledger) Hit(n Number, blocks int, now time.Time) ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &l.tenants[n]
	t.Hits += uint64(blocks)
	t.LastHit = now
	return t.ID
}

// Tenant is what there is of a tenant, and its number. A tenant that has none counts with the rest if it would get no
// number: its ID is Rest then.
func (l *Ledger) Tenant(id ID) (Tenant, Number) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n, ok := l.numbers[id]; ok {
		return l.tenants[n], n
	}
	if len(l.free) == 0 && len(l.tenants) >= l.most {
		return l.tenants[rest], rest
	}
	return Tenant{ID: id}, none
}

// All are the tenants that have records.
func (l *Ledger) All() []Tenant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.tenants), func(t Tenant) bool { return t.Records == 0 })
}

// MemoryBytes is what numbers of that many slots and what is kept of their tenants occupy.
func (l *Ledger) MemoryBytes(slots int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.touched {
		return 0
	}
	const mapEntryBytes = 24 // with what a map needs beside it
	return slots*numberBytes + int64(cap(l.tenants))*int64(unsafe.Sizeof(Tenant{})) + int64(len(l.numbers))*mapEntryBytes
}

// Saved is a tenant in a snapshot, at the place of its number.
type Saved struct {
	ID      ID
	Records uint64
	Bytes   uint64
}

// Save returns the tenants as a snapshot has them: only the one that stands for none if there never was another.
func (l *Ledger) Save() []Saved {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.tenants
	if !l.touched {
		all = all[:1]
	}
	out := make([]Saved, len(all))
	for n, t := range all {
		out[n] = Saved{t.ID, uint64(t.Records), uint64(t.Bytes)}
	}
	return out
}

// Restore fills a new ledger with what Save returned. The numbers of slots have to be filled in, and checked.
func (l *Ledger) Restore(saved []Saved) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(saved) != 1 && len(saved) < int(firstFree) || len(saved) > l.most {
		return fmt.Errorf("%d tenants", len(saved))
	}
	l.touched = len(saved) > 1
	for n, s := range saved {
		if n >= int(firstFree) {
			l.tenants = append(l.tenants, Tenant{ID: s.ID})
		}
		t := &l.tenants[n]
		if t.ID != s.ID {
			return fmt.Errorf("tenant %d is %v", n, s.ID)
		}
		t.Records, t.Bytes = int64(s.Records), int64(s.Bytes)
		switch {
		case n < int(firstFree):
		case t.Records == 0:
			l.free = append(l.free, Number(n))
		default:
			l.numbers[s.ID] = Number(n)
		}
	}
	return nil
}

// Blocks are the numbers of the slots up to a limit as blocks of bytes, for a snapshot; none if there was no tenant. They alias the ledger's memory.
func (l *Ledger) Blocks(limit uint32) [][]byte {
	var out [][]byte
	if !l.hasNumbers() {
		return nil
	}
	for at := uint64(0); at < uint64(limit); at += ChunkSlots {
		n := min(ChunkSlots, uint64(limit)-at)
		out = append(out, unsafe.Slice((*byte)(unsafe.Pointer(l.slots[at/ChunkSlots])), n*numberBytes))
	}
	return out
}

func (l *Ledger) hasNumbers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.touched
}

// Check reports whether a block that was filled in names tenants that there are.
func (l *Ledger) Check(block []byte) error {
	numbers := unsafe.Slice((*Number)(unsafe.Pointer(unsafe.SliceData(block))), len(block)/numberBytes)
	for _, n := range numbers {
		if int(n) >= len(l.tenants) {
			return fmt.Errorf("tenant %d of %d", n, len(l.tenants))
		}
	}
	return nil
}
