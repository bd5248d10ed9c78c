package catalog

import (
	"math/bits"

	"github.com/kvconn/kvconn/store/hashtable"
	"github.com/kvconn/kvconn/store/offheap"
)

const (
	// Up to a load of 7/8 few references lie outside their own bucket.
	maxLoadNum, maxLoadDen = 7, 8
	// minBuckets is the size of the first region, and growShift says by what part each next one is larger:
	// a quarter, since memory counts here, and nobody waits for an insertion.
	minBuckets = 512
	growShift  = 2
	// moveAhead is how many buckets are moved with each reference added while the table grows. When the last
	// one is moved the table has 5% more than at the beginning.
	moveAhead = 2
	// giveBytes are given back at one time, populateBytes populated: a huge page.
	giveBytes     = 256 << 10
	populateBytes = 2 << 20
)

// buckets are the hash table: it has records by class and key, and objects by id. It grows as that of the disk's
// index does: into a larger region, bucket by bucket.
type buckets struct {
	// hashOf is the hash of what a reference is of.
	hashOf func(ref) uint64

	region, next *hashtable.Region // next while it grows
	moved        int               // buckets of region that are empty, as next has what belongs there
	ahead        *hashtable.Region // mapped for the next growth, or nil
	emptied      *hashtable.Region // what a growth has left, or nil
	count        int
}

func newBuckets(hashOf func(ref) uint64) buckets {
	return buckets{hashOf: hashOf, region: mapRegion(minBuckets)}
}

func mapRegion(n int) *hashtable.Region {
	r, err := hashtable.NewRegion(n)
	if err != nil {
		panic("catalog: cannot map the hash table: " + err.Error()) // as with memory of Go's heap
	}
	return r
}

func (t *buckets) free() {
	t.region.Free()
	t.next.Free()
	t.ahead.Free()
	t.emptied.Free()
	*t = buckets{}
}

// home returns the region that has what belongs to a hash, and the bucket there.
func (t *buckets) home(h uint64) (r *hashtable.Region, at int) {
	r = t.region
	at = r.Home(h)
	if at < t.moved {
		r = t.next
		at = r.Home(h)
	}
	return r, at
}

// find returns the first reference of a hash that f accepts. Others of the tag may be of other hashes.
func (t *buckets) find(h uint64, f func(ref) bool) (ref, bool) {
	tag := hashtable.TagOf(h)
	r, at := t.home(h)
	for range r.Buckets {
		b := &r.Buckets[at]
		first, second := b.Matches(tag)
		for ; first != 0; first &= first - 1 {
			if slot := bits.TrailingZeros64(first) / 8; b.Tags[slot] == tag && f(b.Refs[slot]) {
				return b.Refs[slot], true
			}
		}
		for ; second != 0; second &= second - 1 {
			if slot := 8 + bits.TrailingZeros64(second)/8; b.Tags[slot] == tag && f(b.Refs[slot]) {
				return b.Refs[slot], true
			}
		}
		if b.Passed == 0 {
			break
		}
		at = r.After(at)
	}
	return hashtable.NoRef, false
}

// position is where a reference is.
func (t *buckets) position(h uint64, of ref) (r *hashtable.Region, home, at, slot int) {
	tag := hashtable.TagOf(h)
	r, home = t.home(h)
	at = home
	for range r.Buckets {
		b := &r.Buckets[at]
		for slot, other := range b.Refs {
			if other == of && b.Tags[slot] == tag {
				return r, home, at, slot
			}
		}
		if b.Passed == 0 {
			break
		}
		at = r.After(at)
	}
	panic("catalog: a reference is not in the table that it belongs to")
}

// put adds a reference.
func (t *buckets) put(h uint64, of ref) {
	t.makeRoom()
	r, at := t.home(h)
	r.Place(at, h, of)
	t.count++
}

// cut removes a reference that is there.
func (t *buckets) cut(h uint64, of ref) {
	r, home, at, slot := t.position(h, of)
	r.Take(home, at, slot)
	t.count--
}

// replace puts another reference in the place of one that is there.
func (t *buckets) replace(h uint64, of, by ref) {
	r, _, at, slot := t.position(h, of)
	r.Buckets[at].Refs[slot] = by
}

func (t *buckets) room() int { return len(t.region.Buckets) * hashtable.BucketSlots }

func (t *buckets) nextBuckets() int {
	return len(t.region.Buckets) + (len(t.region.Buckets)+1<<growShift-1)>>growShift
}

// makeRoom makes room for one more reference, as the index of the disk does.
func (t *buckets) makeRoom() {
	if t.next == nil {
		if (t.count+1)*maxLoadDen <= t.room()*maxLoadNum {
			return
		}
		if t.next, t.ahead = t.ahead, nil; t.next == nil {
			t.next = mapRegion(t.nextBuckets())
		}
	}
	for n := 0; n < moveAhead && t.next != nil; n++ {
		t.move()
	}
}

// move takes what belongs in the next bucket over to the next region.
func (t *buckets) move() {
	old, home := t.region, t.moved
	t.moved++
	old.Move(home, t.next, t.hashOf)
	if t.moved == len(old.Buckets) {
		t.emptied.Free() // nil but where it grew twice since the last call of ready
		t.emptied, t.region, t.next, t.moved = old, t.next, nil, 0
	}
}

// reserve makes the next growth one that has room for n references.
func (t *buckets) reserve(n int) {
	buckets := n*maxLoadDen/maxLoadNum/hashtable.BucketSlots + 1
	if t.next == nil && t.ahead == nil && buckets > t.nextBuckets() {
		t.ahead = mapRegion(buckets)
	}
}

// chores are what [Catalog.ready] does for the table's growth while look-ups go on: only the goroutine that adds
// references changes these regions.
func (t *buckets) chores(more int) {
	if t.next == nil && t.ahead == nil && (t.count+more)*maxLoadDen > t.room()*maxLoadNum {
		t.ahead = mapRegion(t.nextBuckets())
	}
	of, until := t.next, populateBytes
	if of == nil {
		of = t.ahead
	} else {
		until += int(float64(of.Bytes()) * float64(t.moved+moveAhead*more) / float64(len(t.region.Buckets)))
	}
	for of != nil {
		part := of.Unpopulated(until, populateBytes)
		if part == nil {
			return
		}
		_ = offheap.Populate(part) // or it is given when it is written to
		of.NotePopulated(len(part))
	}
}

// emptyBytes is how much of the old region may be given back.
func (t *buckets) emptyBytes() int { return t.moved*hashtable.BucketBytes - t.region.GivenBytes() }

// bytes is the memory in use: while the table grows, what was not given back of the old region, and what
// was filled of the next.
func (t *buckets) bytes() int64 {
	if t.region == nil {
		return 0
	}
	n := t.region.Held(0)
	if t.emptied != nil {
		n += t.emptied.Held(0)
	}
	if t.next != nil {
		n += int64(float64(t.next.Bytes()) * float64(t.moved) / float64(len(t.region.Buckets)))
	}
	return n
}
