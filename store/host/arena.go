// Package host is the host tier: one arena of page-aligned slots in shared memory for the whole
// daemon, and a read-through cache in it. A slot is a buffer for direct I/O while a record is read
// or written and, once its bytes are verified, a cached copy of the record until the memory is
// needed for something else. Slots in use are pinned and charged to the account of a rank, which
// bounds them, so that one engine cannot starve another.
//
// Ranks load and save through [Cache], and engines that copy for themselves through package handoff.
// Below them, a load calls [Account.Acquire], reads into [Slot.Bytes] if the outcome is [Fill],
// calls [Slot.Publish] once the bytes are verified, and [Slot.Release] once they are copied. A save
// calls [Account.ReserveSave], copies, writes, publishes and releases.
package host

import (
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/host/memory"
	"github.com/kvconn/kvconn/store/host/meter"
	"github.com/kvconn/kvconn/store/host/unitset"

	"github.com/kvconn/kvconn/store/host/list"
)

// Arena is the memory of the host tier. It is safe for concurrent use. Its lock is held for
// bookkeeping alone, never while bytes move.
type Arena struct {
	opts Options
	mem  *memory.Memory

	mu     sync.Mutex
	closed bool
	bySize map[int]*class
	live   []*class // that have spans now: few, of all sizes that were ever asked for
	tick   uint64

	slabs       []slab   // the first is not used
	vacantSlabs []uint32 // numbers of slabs that were given back
	index       index
	// namespaces numbers the namespaces that accounts or records are of; see [Arena.number].
	namespaces       map[connector.NamespaceDigest]namespaceID
	spaces           []space // by number; the first is not used
	vacantNamespaces []namespaceID
	// waiters are the handles that wait for slots to be filled.
	waiters map[slotID]list.List[Slot]

	units     []spanID // of each unit, 0 if it is unassigned
	freeUnits int      // how many are unassigned
	// unfree are the units that are assigned, or promised to a waiter.
	unfree unitset.Set
	// held are the units whose slots cannot all be evicted now: one is pinned, or they are promised to a waiter.
	held unitset.Set
	high int // no unit from here on was ever assigned

	accounts int                // not forgotten
	active   int                // accounts that share the arena
	queued   list.List[Account] // the accounts with waiters
	waiting  int                // handles that wait for memory
	drain    drain
	meter    meter.Meter // has its own mutex

	count                 Counters
	cleanBytes, usedBytes int64
	aheads                aheads
	wake                  chan struct{}
	stop                  chan struct{}
	populator             sync.WaitGroup
}

// New maps an arena. Its memory is faulted in bit by bit in the background: see [Options].
func New(o Options) (*Arena, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	n := int(o.Bytes / int64(o.unitBytes))
	mem, err := o.newMemory(int64(n) * int64(o.unitBytes))
	if err != nil {
		return nil, fmt.Errorf("host tier: %w", err)
	}
	a := &Arena{
		opts: o, mem: mem, bySize: make(map[int]*class), slabs: make([]slab, 1), spaces: make([]space, 1),
		index: newIndex(), namespaces: make(map[connector.NamespaceDigest]namespaceID), waiters: make(map[slotID]list.List[Slot]),
		aheads: aheads{from: make(map[slotID]string)},
		units:  make([]spanID, n), freeUnits: n, unfree: unitset.New(n), held: unitset.New(n),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	a.drain.arena = a
	a.populator.Go(func() {
		mem.Populate(memory.Population{
			FreeBytes: o.FreeBytes, AheadBytes: o.PopulateAheadBytes, Used: a.used, Grown: a.wake, Stop: a.stop, Logger: o.Logger,
		})
	})
	return a, nil
}

// File is the arena's shared memory for reading alone. It shows every cached record, and belongs to the arena.
func (a *Arena) File() *os.File { return a.mem.File }

// Memory is the whole arena, to prepare it for copies, and Writable its file for the daemon's own processes.
func (a *Arena) Memory() []byte     { return a.mem.Bytes }
func (a *Arena) Writable() *os.File { return a.mem.Writable }

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
	a.slabs, a.index = nil, newIndex()
	a.cleanBytes = 0
	a.mu.Unlock()
	close(a.stop)
	a.populator.Wait()
	return a.mem.Close()
}

// tickBits is how many uses count as one moment: a slot keeps 32 bits of its last.
const tickBits = 6

// now is the moment of the newest use. Differences of two count, which wrap around.
func (a *Arena) now() uint32 { return uint32(a.tick >> tickBits) }

// used says up to where the memory was ever assigned, and whether loads or saves are under way.
func (a *Arena) used() (end int64, busy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return int64(a.high) * int64(a.opts.unitBytes), a.usedBytes > 0
}
