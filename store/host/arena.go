package host

import (
	"fmt"
	"os"
	"sync"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Arena is the memory of the host tier. It is safe for concurrent use. Its lock is held
// for bookkeeping alone, never while bytes move.
type Arena struct {
	opts Options
	mem  *memory

	mu     sync.Mutex
	closed bool
	bySize map[int]*class
	live   live
	tick   uint64

	slabs       []slab   // the first is not used
	vacantSlabs []uint32 // numbers of those that were given back
	index       index
	// namespaces numbers those that accounts were opened for. A number is never given out again.
	namespaces map[connector.NamespaceDigest]namespaceID
	// waiters are those for slots that are being filled.
	waiters map[slotID]slotQueue

	units     []spanID // of each unit, 0 if it is unassigned
	freeUnits int      // those that are unassigned
	// unfree are the units that are assigned, or promised to a waiter.
	unfree unitSet
	// held are the units whose slots cannot all be evicted now: one is pinned, or they are
	// promised to a waiter.
	held unitSet
	high int // no unit from here on was ever assigned

	accounts int // not forgotten
	active   int // of them, those that share the arena
	queued   accountRing
	waiting  int // handles that wait for memory
	drain    drain
	// drainCursor is where the next search for memory to drain begins.
	drainCursor int

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
	mem, err := o.newMemory(int64(n)*int64(o.unitBytes), !o.SmallPages)
	if err != nil {
		return nil, fmt.Errorf("host tier: %w", err)
	}
	a := &Arena{
		opts: o, mem: mem, bySize: make(map[int]*class), slabs: make([]slab, 1),
		index: newIndex(), namespaces: make(map[connector.NamespaceDigest]namespaceID), waiters: make(map[slotID]slotQueue),
		units: make([]spanID, n), freeUnits: n, unfree: newUnitSet(n), held: newUnitSet(n),
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
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
	a.slabs, a.index = nil, newIndex()
	a.cleanBytes = 0
	a.mu.Unlock()
	close(a.stop)
	a.populator.Wait()
	return a.mem.close()
}

// Present sets at[i] where a verified copy of the record of keys[i] is there, without counting as
// a use. A load may still find it gone.
func (a *Arena) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	number, known := a.namespaces[ns]
	if !known {
		return
	}
	id := slotKey{ns: number, shard: shard}
	for i := range keys {
		id.key = keys[i]
		if s := a.find(a.index.hash(&id), &id); s != 0 && a.slot(s).state == slotClean {
			at[i] = true
		}
	}
}

// Drop forgets a record that its store has dropped. Who holds it pinned goes on with it.
func (a *Arena) Drop(id store.RecordID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := slotKey{a.namespaces[id.Namespace], id.Shard, id.Key}
	if at := a.find(a.index.hash(&k), &k); at != 0 {
		a.drop(at)
		a.serve()
	}
}

// DropNamespace forgets all records of a namespace that are there when it is called. It
// gives the lock up again and again, as there may be millions.
func (a *Arena) DropNamespace(ns connector.NamespaceDigest) {
	for n := uint32(1); a.dropOf(ns, n); n++ {
	}
}

// dropOf is DropNamespace of one slab. It reports false where there is no such slab.
func (a *Arena) dropOf(ns connector.NamespaceDigest, n uint32) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	number, known := a.namespaces[ns]
	if !known || n >= uint32(len(a.slabs)) {
		return false
	}
	for i := 0; i < len(a.slabs[n].slots); i++ { // the slab may be given back meanwhile
		if s := &a.slabs[n].slots[i]; s.ns == number && (s.state == slotFilling || s.state == slotClean) {
			a.drop(slotID(n<<slabBits | uint32(i)))
		}
	}
	a.serve()
	return true
}

// drop makes a slot unfindable. Those who wait for it to be filled read for themselves.
func (a *Arena) drop(id slotID) {
	switch s := a.slot(id); {
	case s.state == slotFilling:
		a.remove(id)
		a.failWaiters(id)
		s.state = slotDirty
	case s.pins > 0:
		a.remove(id)
		a.cleanBytes -= int64(a.classOfSlot(id).slotBytes)
		s.state = slotDirty
	default:
		a.evict(id)
	}
}

// tickBits is how many uses count as one moment: a slot keeps 32 bits of its last.
const tickBits = 6

// now is the moment of the newest use. Differences of two count, which wrap around.
func (a *Arena) now() uint32 { return uint32(a.tick >> tickBits) }

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
