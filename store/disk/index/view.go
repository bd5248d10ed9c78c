package index

import (
	"time"

	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// View is a table while its lock is held for reading, for what goes over slots.
type View struct{ t *Table }

// Slot is what a slot has.
type Slot struct {
	Victim        // whose Seq is 0 if the slot is empty
	Pins   uint32 // of those that hold it
	Kept   bool   // an administrator wants it kept: see [Table.Keep]
	Bytes  uint32 // of the payload
}

// View calls f with the lock held for reading. f must not be long, and not call the table.
func (t *Table) View(f func(View)) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f(View{t})
}

// Limit is one past the last slot, 0 once the table is closed.
func (v View) Limit() Ref { return v.t.limit }

// Slot returns what a slot below the limit has.
func (v View) Slot(ref Ref) Slot {
	e := v.t.entry(ref)
	return Slot{Victim{Ref: ref, Seq: e.seq, Order: v.t.order(e)}, e.held(), e.pins()&keptBit != 0, e.bytes}
}

// Change is a table while its lock is held.
type Change struct{ View }

// Change calls f with the lock held, otherwise like [Table.View].
func (t *Table) Change(f func(Change)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(Change{View{t}})
}

// Remove is [Table.Remove].
func (c Change) Remove(ref Ref, seq uint64) (Removed, bool) { return c.t.remove(ref, seq) }

// Hit notes that a look-up has found blocks, and returns whose they are. The record of the slot is one of them, and pinned.
func (t *Table) Hit(ref Ref, blocks int, now time.Time) (id tenants.ID) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		id = t.tenants.Hit(t.tenants.At(uint32(ref)), blocks, now)
	}
	return id
}
