package index

import (
	"sync"
	"unsafe"

	"github.com/kvconn/kvconn/store/disk/fsio"
)

// region is one hash table in one mapping, so that it gets huge pages: in small ones a
// lookup would miss the translation buffer with every key.
type region struct {
	memory  []byte
	buckets []bucket
	// wrapped is past the last bucket that ever held a record which belongs at the end of
	// the region.
	wrapped int
	// given is how much of the memory's front was given back, populated how much of it was
	// populated.
	given, populated int
	// giving is held while memory is given back or the mapping is taken away, and by who
	// changes wrapped. It is taken after the table's lock.
	giving sync.Mutex
}

const (
	// minBuckets is the size of the first region.
	minBuckets = 512
	// moveAhead is how many buckets are moved with each record added while the table grows.
	// When the last one is moved the table has 5% more records than at the beginning: the old
	// region never gets full, and the next growth is far.
	moveAhead = 2
	// giveBytes are given back at one time: a few huge pages. A power of two.
	giveBytes = 8 << 20
	// keepBytes of the front are not given back before the end, or giveBytes if that is less:
	// the first record that wraps must not have to wait, under the lock, for a page.
	keepBytes = 2 << 20
)

func newRegion(buckets int) (*region, error) {
	b, err := fsio.Map(buckets * bucketBytes)
	if err != nil {
		return nil, err
	}
	return &region{memory: b, buckets: unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), buckets)}, nil
}

func (r *region) free() {
	if r != nil && r.memory != nil {
		r.giving.Lock()
		defer r.giving.Unlock()
		_ = fsio.Unmap(r.memory)
	}
}

// noteWrap notes that a record which belongs at the end comes to lie in a bucket at the
// beginning. It is called before the record is written there.
func (r *region) noteWrap(at int) {
	if at < r.wrapped {
		return
	}
	r.giving.Lock()
	defer r.giving.Unlock()
	r.wrapped = at + 1
}

// makeRoom makes room for one more record, a little at a time: a table that is full gets a
// next region half as large again (less memory stands empty than with doubling), and each
// record that is added moves the next two buckets over. Where hashes belong rises with
// them in both regions: what belongs before the bucket moved last is in the next region,
// all else in the old one, and a lookup looks into one.
func (t *Table) makeRoom() {
	if t.next == nil {
		room := len(t.region.buckets) * bucketSlots
		if t.region != &t.blank && (t.count+1)*maxLoadDen <= room*maxLoadNum {
			return
		}
		t.grow()
	}
	for n := 0; n < moveAhead && t.next != nil; n++ {
		t.move()
	}
}

// Growing reports whether the table is being moved into a larger hash table.
func (t *Table) Growing() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.next != nil
}

// nextBuckets is the size of the region that comes after this one.
func (t *Table) nextBuckets() int {
	if t.region == &t.blank {
		return minBuckets
	}
	return len(t.region.buckets) + (len(t.region.buckets)+1)/2
}

// grow makes the next region, or takes the one that was made ahead.
func (t *Table) grow() {
	next, buckets := t.ahead, t.nextBuckets()
	t.ahead = nil
	if next != nil && len(next.buckets) != buckets {
		next.free()
		next = nil
	}
	if next == nil {
		var err error
		if next, err = newRegion(buckets); err != nil {
			// As with any memory that the system does not have.
			panic("index: cannot map the hash table: " + err.Error())
		}
	}
	if t.region == &t.blank {
		t.region = next
		return
	}
	t.next = next
}

// move takes the records that belong in the next bucket over to the next region.
func (t *Table) move() {
	old, home := t.region, t.moved
	t.moved++
	for at, n := home, 0; n < len(old.buckets); n++ {
		more := t.moveFrom(at, home)
		if !more {
			break
		}
		at = old.after(at)
	}
	if t.moved == len(old.buckets) {
		t.emptied.free() // nil but where the table grew twice without populate
		t.emptied, t.region, t.next, t.moved = old, t.next, nil, 0
	}
}

// moveFrom moves the records of one bucket that belong in home, and reports whether there may
// be more of them in later ones.
func (t *Table) moveFrom(at, home int) bool {
	old := t.region
	b := &old.buckets[at]
	more := b.passed > 0
	// All entries are read before any is used: their cache misses overlap.
	var hashes [bucketSlots]uint64
	for slot, tag := range b.tags {
		if tag != 0 {
			hashes[slot] = t.entry(b.refs[slot]).hash()
		}
	}
	for slot, tag := range b.tags {
		if tag != 0 && old.home(hashes[slot]) == home {
			ref := b.refs[slot]
			old.take(home, at, slot)
			t.next.place(t.next.home(hashes[slot]), hashes[slot], ref)
		}
	}
	return more
}

// giveBack gives the system the memory that the growth has emptied. It takes the kernel a while,
// so the table's lock is not held meanwhile.
func (t *Table) giveBack() {
	t.mu.Lock()
	emptied := t.emptied
	t.emptied = nil
	part, r := t.emptiedPart()
	t.mu.Unlock()
	emptied.free()
	if r != nil {
		_ = fsio.Discard(part) // advice: it is given back at the end in any case
		r.giving.Unlock()
	}
}

// emptiedPart returns the memory of the first buckets of the region that is being moved, which are
// empty but for records that belong at the region's end, and the region with giving held; or nil.
func (t *Table) emptiedPart() (part []byte, r *region) {
	if !t.givesSome() {
		return nil, nil
	}
	r = t.region
	r.giving.Lock()
	from, to := r.given, t.moved*bucketBytes&^(t.giveBytes-1)
	r.given = to
	from = max(from, t.keptBytes(), (r.wrapped*bucketBytes+t.giveBytes-1)&^(t.giveBytes-1))
	return r.memory[min(from, to):to], r
}

func (t *Table) keptBytes() int { return min(keepBytes, t.giveBytes) }

// givesSome reports whether enough of the old region is empty to be given back.
func (t *Table) givesSome() bool { return t.moved*bucketBytes-t.region.given >= t.giveBytes }

// moveAll ends growth.
func (t *Table) moveAll() {
	for t.next != nil {
		t.move()
	}
}

// heldBytes is the memory of a region that was not given back.
func (t *Table) heldBytes(r *region) int64 {
	return int64(len(r.memory) - r.given + min(r.given, t.keptBytes()))
}

// hashBytes is the memory of the hash tables in use: while the table grows, that of the
// old one which was not given back and that of the next which was filled.
func (t *Table) hashBytes() int64 {
	n := t.heldBytes(t.region)
	if t.emptied != nil {
		n += t.heldBytes(t.emptied)
	}
	if t.next != nil {
		n += int64(float64(len(t.next.memory)) * float64(t.moved) / float64(len(t.region.buckets)))
	}
	return n
}
