package index

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/internal/disk"
)

const (
	chunkShift   = 17
	chunkEntries = 1 << chunkShift // 6 MiB: three huge pages
	chunkMask    = chunkEntries - 1
	// lookupRun is how many keys a lookup takes under one hold of the lock: a writer
	// waits for one run, not for a chain of a million keys.
	lookupRun = 4096
	// probeGroup keys are probed together, so that their cache misses overlap. 256 looked
	// a long chain up a fifth faster than 32, and 512 no faster.
	probeGroup = 256
	// parentLag is how far, in ticks, a parent may be behind before an insertion below it
	// counts as a use of its whole chain.
	parentLag = 64
	// renumberAt is the tick at which all ticks are halved, long before they wrap.
	renumberAt = 0xF000_0000
)

// Table maps identities to slots. Lookups share a read lock that no one holds across
// I/O; insertions and removals take it for a few microseconds.
type Table struct {
	clock atomic.Uint32

	mu     sync.RWMutex
	closed bool
	chunks [][]entry
	shards [hashShards]hashShard
	empty  bucket // stands for the bucket of a shard that has none
	// region holds the buckets of all shards, next those of the shards moved while it grows.
	region, next *region
	moved        [hashShards]bool
	left         int // shards to move

	limit Ref         // references handed out end here
	spare []freeRange // ranges given back
	count int
	bytes int64 // payload bytes of all records
}

type freeRange struct {
	base  Ref
	slots uint32
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
	t.clock.Store(firstTick)
	return t
}

func (t *Table) entry(r Ref) *entry { return &t.chunks[r>>chunkShift][r&chunkMask] }

// AddSlots hands out references for a run of empty slots.
func (t *Table) AddSlots(slots uint32) (Ref, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, f := range t.spare {
		if f.slots >= slots {
			t.spare[i] = freeRange{f.base + Ref(slots), f.slots - slots}
			if t.spare[i].slots == 0 {
				t.spare = append(t.spare[:i], t.spare[i+1:]...)
			}
			return f.base, nil
		}
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

func (t *Table) reserve(end uint64) error {
	for uint64(len(t.chunks))<<chunkShift < end {
		b, err := disk.Map(chunkEntries * entryBytes)
		if err != nil {
			return err
		}
		t.chunks = append(t.chunks, unsafe.Slice((*entry)(unsafe.Pointer(unsafe.SliceData(b))), chunkEntries))
	}
	return nil
}

// DropSlots takes back the references of a run of slots, which must be empty.
func (t *Table) DropSlots(base Ref, slots uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spare = append(t.spare, freeRange{base, slots})
}

// Close unmaps the table. Every method still answers, as if it were empty.
func (t *Table) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, c := range t.chunks {
		_ = disk.Unmap(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(c))), chunkEntries*entryBytes))
	}
	t.region.free()
	t.next.free()
	t.chunks, t.shards, t.region, t.next, t.count, t.bytes = nil, [hashShards]hashShard{}, nil, nil, 0, 0
}

// Len is the number of records, PayloadBytes the sum of their payloads.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count
}

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
	n := int64(t.limit) * entryBytes
	for _, r := range [...]*region{t.region, t.next} {
		if r != nil {
			n += int64(len(r.memory))
		}
	}
	return n + int64(unsafe.Sizeof(*t))
}

// Get finds a record. With pin set the record's slot is held until [Table.Unpin].
func (t *Table) Get(id ID, pin bool) (Found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	ref := t.find(&id)
	if ref == NoRef {
		return Found{}, false
	}
	e := t.entry(ref)
	if pin {
		e.pin()
	}
	return Found{Ref: ref, Seq: e.seq, Bytes: e.bytes, Depth: e.depth}, true
}

// Prefix finds the longest leading part of chain of which every shard is there. The
// records found count as used now, and their references are appended to pins, pinned.
func (t *Table) Prefix(namespace uint16, shards []connector.Shard, chain []connector.Key, pins []Ref) (int, []Ref) {
	if len(shards) == 0 {
		return 0, pins
	}
	tick := t.nextTick()
	blocks := 0
	for blocks < len(chain) {
		run := chain[blocks:min(len(chain), blocks+lookupRun)]
		var n int
		n, pins = t.prefixRun(namespace, shards, run, tick, pins)
		blocks += n
		if n < len(run) {
			break
		}
	}
	return blocks, pins
}

func (t *Table) prefixRun(namespace uint16, shards []connector.Shard, run []connector.Key, tick uint32, pins []Ref) (int, []Ref) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var refs [probeGroup]Ref
	for from := 0; from < len(run); from += probeGroup {
		group := run[from:min(len(run), from+probeGroup)]
		found := len(group)
		mark := len(pins)
		for _, shard := range shards {
			n := t.probe(ID{Namespace: namespace, Shard: shard}, group[:found], &refs)
			found = min(found, n)
			pins = append(pins, refs[:n]...)
			if found == 0 {
				break
			}
		}
		pins = t.keep(pins, mark, len(shards), found, tick)
		if found < len(group) {
			return from + found, pins
		}
	}
	return len(run), pins
}

// probe looks up the keys of a group for one shard and returns how many leading ones are
// there. It goes over the group in passes that depend on nothing before them in the pass
// (hash and bucket, reference, entry), so that the cache misses of a group overlap instead
// of following one another.
func (t *Table) probe(id ID, group []connector.Key, refs *[probeGroup]Ref) int {
	var buckets [probeGroup]*bucket
	var first [probeGroup]uint64
	var tags [probeGroup]uint8
	for i := range group {
		id.Key = group[i]
		h := id.hash()
		b := &t.empty
		if s := &t.shards[shardOf(h)]; len(s.buckets) > 0 {
			b = &s.buckets[s.home(h)]
		}
		buckets[i], tags[i], first[i] = b, tagOf(h), b.firstTags()
	}
	for i := range group {
		if refs[i] = buckets[i].candidate(first[i], tags[i]); refs[i] != NoRef {
			first[i] = uint64(t.entry(refs[i]).shard)
		}
	}
	for i := range group {
		id.Key = group[i]
		if refs[i] != NoRef && first[i] == uint64(id.Shard) && t.entry(refs[i]).is(&id) {
			continue
		}
		if refs[i] = t.find(&id); refs[i] == NoRef {
			return i
		}
	}
	return len(group)
}

// keep pins and touches those references of a group, appended shard by shard from mark
// on, that belong to its first found blocks, and drops the rest.
func (t *Table) keep(pins []Ref, mark, shards, found int, tick uint32) []Ref {
	if shards == 1 {
		pins = pins[:mark+found]
		for _, ref := range pins[mark:] {
			t.entry(ref).touch(tick, 1)
		}
		return pins
	}
	kept := mark
	for i := mark; i < len(pins); {
		// The references of one shard are contiguous; each shard found at least as many
		// blocks as the shards after it.
		n := t.sameShard(pins[i:])
		for _, ref := range pins[i : i+min(n, found)] {
			t.entry(ref).touch(tick, 1)
			pins[kept] = ref
			kept++
		}
		i += n
	}
	return pins[:kept]
}

func (t *Table) sameShard(refs []Ref) int {
	shard := t.entry(refs[0]).shard
	n := 1
	for n < len(refs) && t.entry(refs[n]).shard == shard {
		n++
	}
	return n
}

// Unpin releases references that Get or Prefix pinned.
func (t *Table) Unpin(refs ...Ref) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return
	}
	for _, ref := range refs {
		t.entry(ref).unpin()
	}
}

// Pinned reports whether someone holds the slot.
func (t *Table) Pinned(ref Ref) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return !t.closed && t.entry(ref).pins() > 0
}

// nextTick advances the clock of uses.
func (t *Table) nextTick() uint32 {
	tick := t.clock.Add(1)
	if tick >= renumberAt {
		t.renumber()
		tick = t.clock.Add(1)
	}
	return tick
}

// renumber halves all ticks. It happens once in thousands of millions of lookups.
func (t *Table) renumber() {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Load()
	if now < renumberAt {
		return
	}
	t.clock.Store(now / 2)
	for _, c := range t.chunks {
		for i := range c {
			old := c[i].use
			c[i].use = old>>tickShift/2<<tickShift | old&pinMask
		}
	}
}

// Has reports whether a record is there, without any effect.
func (t *Table) Has(id ID) bool {
	_, ok := t.Get(id, false)
	return ok
}
