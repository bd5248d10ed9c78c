package host

import (
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Record is what a slot is found by and what its bytes must be of.
type Record struct {
	ID     store.RecordID
	Parent connector.Key
	Proof  connector.Proof
}

// Arena is the memory of the host tier. It is safe for concurrent use. Its lock is held
// for bookkeeping alone, never while bytes move.
type Arena struct {
	opts Options
	mem  *memory

	mu      sync.Mutex
	closed  bool
	bySize  map[int]*class
	classes []*class
	records map[store.RecordID]*slot
	tick    uint64

	units     []*span // of each unit, nil if it is unassigned
	freeUnits int
	low       int // no unit below is unassigned
	high      int // no unit from here on was ever assigned

	accounts []*Account
	turn     int // index of the account whose waiter is served first
	waiting  int // handles that wait for memory
	drain    drain

	count                 Counters
	cleanBytes, usedBytes int64
	populated, hugeUnits  int
	wake                  chan struct{}
	stop                  chan struct{}
	populator             sync.WaitGroup
}

// New maps an arena. Memory is faulted in bit by bit in the background.
func New(o Options) (*Arena, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := int(o.Bytes / int64(o.unitBytes))
	mem, err := newMemory(int64(n)*int64(o.unitBytes), !o.SmallPages)
	if err != nil {
		return nil, fmt.Errorf("host tier: %w", err)
	}
	a := &Arena{
		opts: o, mem: mem, bySize: make(map[int]*class), records: make(map[store.RecordID]*slot),
		units: make([]*span, n), freeUnits: n, wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	a.populator.Go(a.populate)
	return a, nil
}

// File is the arena's shared memory, for a process that maps it read-only; it cannot be
// mapped otherwise or cut off. Whoever has it can read every cached record. It belongs to
// the arena.
func (a *Arena) File() *os.File { return a.mem.file }

// Memory is the whole arena, for who prepares it for copies. Its bytes are those of slots.
func (a *Arena) Memory() []byte { return a.mem.bytes }

// SizeBytes is the size of the arena.
func (a *Arena) SizeBytes() int64 { return int64(len(a.mem.bytes)) }

// Close gives the memory back. It fails with [ErrBusy] while slots are in use or waited
// for: the kernel may still write to them.
func (a *Arena) Close() error {
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return nil
	}
	if a.usedBytes > 0 || a.waiting > 0 {
		defer a.mu.Unlock()
		return fmt.Errorf("close host tier with %d bytes in use and %d waiting: %w", a.usedBytes, a.waiting, ErrBusy)
	}
	a.closed = true
	clear(a.records)
	a.cleanBytes = 0
	a.mu.Unlock()
	close(a.stop)
	a.populator.Wait()
	return a.mem.close()
}

// Holds reports whether a verified copy of the record is there now, without counting as a
// use. A load may still find it gone.
func (a *Arena) Holds(id store.RecordID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.records[id]
	return p != nil && p.state == slotClean
}

// Drop forgets a record that its store has dropped. Who holds it pinned goes on with it.
func (a *Arena) Drop(id store.RecordID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.records[id]; s != nil {
		a.drop(s)
		a.serve()
	}
}

// DropNamespace forgets all records of a namespace.
func (a *Arena) DropNamespace(ns store.NamespaceID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, s := range a.records {
		if id.Namespace == ns {
			a.drop(s)
		}
	}
	a.serve()
}

// drop makes a slot unfindable. Those who wait for it to be filled read for themselves.
func (a *Arena) drop(s *slot) {
	switch {
	case s.state == slotFilling:
		delete(a.records, s.rec.ID)
		a.failWaiters(s)
		s.state = slotDirty
	case s.pins > 0:
		delete(a.records, s.rec.ID)
		a.cleanBytes -= int64(s.span.class.slotBytes)
		s.state = slotDirty
	default:
		a.evict(s)
	}
}

// wakePopulator tells the populator that more was assigned.
func (a *Arena) wakePopulator() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// populate faults memory in, some way ahead of what is assigned.
func (a *Arena) populate() {
	unit := int64(a.opts.unitBytes)
	ahead := int((a.opts.PopulateAheadBytes + unit - 1) / unit)
	for {
		a.mu.Lock()
		next, end := a.populated, min(a.high+ahead, len(a.units))
		a.mu.Unlock()
		if next >= end {
			select {
			case <-a.stop:
				return
			case <-a.wake:
			}
			continue
		}
		select {
		case <-a.stop:
			return
		default:
		}
		huge := a.mem.populate(int64(next)*unit, int64(next+1)*unit, !a.opts.SmallPages)
		a.mu.Lock()
		a.populated++
		if huge {
			a.hugeUnits++
		}
		a.mu.Unlock()
	}
}
