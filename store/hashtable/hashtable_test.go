package hashtable_test

import (
	"bytes"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/hashtable"
)

const (
	unit      = 4096 // given back at one time: 64 buckets
	maxPassed = 255
)

// user keeps references in regions as the index does, and in a map. While it grows next is not nil,
// and has what belongs in the first moved buckets.
type user struct {
	*testing.T
	g         *rand.Rand
	old, next *hashtable.Region
	moved     int
	hashes    map[hashtable.Ref]uint64
	refs      []hashtable.Ref
	lastRef   hashtable.Ref
	// What was met: records that wrapped, growths, and bytes given back.
	wraps, grew, gave int
}

func newUser(t *testing.T, buckets int) *user {
	u := &user{T: t, g: seed.Random(t, buckets), old: region(t, buckets), hashes: make(map[hashtable.Ref]uint64)}
	t.Cleanup(func() { u.old.Free(); u.next.Free() })
	return u
}

func region(t *testing.T, buckets int) *hashtable.Region {
	t.Helper()
	r, err := hashtable.NewRegion(buckets)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (u *user) home(h uint64) (r *hashtable.Region, at int) {
	if at = u.old.Home(h); at >= u.moved {
		return u.old, at
	}
	return u.next, u.next.Home(h)
}

// find looks for a reference where a look-up with its hash would.
func (u *user) find(h uint64, ref hashtable.Ref) (r *hashtable.Region, at, slot int) {
	tag := hashtable.TagOf(h)
	r, at = u.home(h)
	for range r.Buckets {
		b := &r.Buckets[at]
		first, second := b.Matches(tag)
		for slot = range b.Refs {
			matches := first>>(8*slot+7)&1 == 1
			if slot >= 8 {
				matches = second>>(8*(slot-8)+7)&1 == 1
			}
			if b.Tags[slot] == tag && !matches {
				u.Fatalf("bucket %d: tag %d of slot %d is no match", at, tag, slot)
			}
			if b.Tags[slot] == tag && b.Refs[slot] == ref {
				return r, at, slot
			}
		}
		if b.Passed == 0 {
			break
		}
		at = r.After(at)
	}
	return nil, 0, 0
}

// hash is any one, or one of many that belong in the same bucket, or at the end of the region.
func (u *user) hash() uint64 {
	switch h := u.g.Uint64(); u.g.IntN(50) {
	case 0:
		return 1<<62 | h>>16
	case 1:
		return ^uint64(0) - h>>20
	default:
		return h
	}
}

func (u *user) add() {
	u.makeRoom()
	u.place(u.hash())
}

func (u *user) place(h uint64) {
	u.lastRef++
	u.hashes[u.lastRef] = h
	u.refs = append(u.refs, u.lastRef)
	r, at := u.home(h)
	r.Place(at, h, u.lastRef)
}

func (u *user) remove() {
	if len(u.refs) == 0 {
		return
	}
	i := u.g.IntN(len(u.refs))
	ref := u.refs[i]
	u.refs = slices.Delete(u.refs, i, i+1)
	h := u.hashes[ref]
	delete(u.hashes, ref)
	r, at, slot := u.find(h, ref)
	if r == nil {
		u.Fatalf("reference %d is not found", ref)
	}
	r.Take(r.Home(h), at, slot)
	if r, at, slot := u.find(h, ref); r != nil {
		u.Fatalf("reference %d was taken out and is found in slot %d of bucket %d", ref, slot, at)
	}
}

// makeRoom grows by half at a load of 7/8, two buckets with each reference.
func (u *user) makeRoom() {
	if n := len(u.old.Buckets); u.next == nil && (len(u.refs)+1)*8 > n*hashtable.BucketSlots*7 {
		u.next = region(u.T, n+(n+1)/2)
		u.grew++
	}
	for n := 0; n < 2 && u.next != nil; n++ {
		u.move()
	}
}

// move moves what belongs in the next bucket, and then lets go of what is empty.
func (u *user) move() {
	for _, ref := range u.refs {
		if h := u.hashes[ref]; u.old.Home(h) == u.moved {
			r, at, slot := u.find(h, ref)
			if r != u.old {
				u.Fatalf("reference %d is not in its region", ref)
			}
			r.Take(u.moved, at, slot)
			u.next.Place(u.next.Home(h), h, ref)
		}
	}
	if u.moved++; u.moved == len(u.old.Buckets) {
		u.old.Free()
		u.old, u.next, u.moved = u.next, nil, 0
		return
	}
	if u.moved*hashtable.BucketBytes-u.old.GivenBytes() >= unit {
		u.giveBack()
	}
}

func (u *user) giveBack() {
	kept := u.g.IntN(2) * unit
	before := u.old.GivenBytes()
	part := u.old.Emptied(u.moved, unit, kept)
	if given := u.old.GivenBytes(); given <= before || given > u.moved*hashtable.BucketBytes {
		u.Errorf("%d bytes given back of %d buckets, %d before", given, u.moved, before)
	}
	if len(part) > 0 {
		from := int(uintptr(unsafe.Pointer(&part[0]))-uintptr(unsafe.Pointer(&u.old.Buckets[0]))) / hashtable.BucketBytes
		for i := range u.old.Buckets[from : from+len(part)/hashtable.BucketBytes] {
			if b := &u.old.Buckets[from+i]; b.Tags != [hashtable.BucketSlots]uint8{} {
				u.Fatalf("bucket %d is given back with %v in it", from+i, b.Tags)
			}
		}
	}
	u.old.GiveBack(part)
	u.gave += len(part)
}

// check compares all that the regions hold with the map.
func (u *user) check() {
	passed := map[*hashtable.Region][]int{u.old: make([]int, len(u.old.Buckets))}
	if u.next != nil {
		passed[u.next] = make([]int, len(u.next.Buckets))
	}
	for ref, h := range u.hashes {
		r, at, _ := u.find(h, ref)
		if r == nil {
			u.Fatalf("reference %d is not found", ref)
		}
		for b := r.Home(h); b != at; b = r.After(b) {
			passed[r][b]++
		}
		if at < r.Home(h) {
			u.wraps++
			if at >= r.Wraps() {
				u.Fatalf("a record wraps to bucket %d, past %d", at, r.Wraps())
			}
		}
	}
	held := 0
	for r, want := range passed {
		for at := range r.Buckets {
			b := &r.Buckets[at]
			if int(b.Passed) != want[at] && b.Passed != maxPassed {
				u.Fatalf("bucket %d was passed by %d records, it has %d", at, want[at], b.Passed)
			}
			held += u.checkBucket(b)
		}
	}
	if held != len(u.hashes) {
		u.Fatalf("the regions hold %d references, want %d", held, len(u.hashes))
	}
}

// checkBucket checks what a bucket says of each of its tags, and counts them.
func (u *user) checkBucket(b *hashtable.Bucket) (held int) {
	for slot, tag := range b.Tags {
		if tag == 0 {
			continue
		}
		held++
		if first := slices.Index(b.Tags[:], tag); b.Candidate(b.FirstTags(), tag) != b.Refs[first] {
			u.Fatalf("slot %d has the first tag %d, the candidate is %d of %v", first, tag, b.Candidate(b.FirstTags(), tag), b.Refs)
		}
		if u.hashes[b.Refs[slot]] == 0 {
			u.Fatalf("reference %d is there and was never added, or was taken", b.Refs[slot])
		}
	}
	for tag := uint8(1); tag < 20; tag++ {
		if !slices.Contains(b.Tags[:], tag) && b.Candidate(b.FirstTags(), tag) != hashtable.NoRef {
			u.Fatalf("a candidate of tag %d among %v", tag, b.Tags)
		}
	}
	return held
}

// TestRegionsHoldWhatAMapDoesWhileTheyGrow adds, takes and moves at random, with many references in
// one bucket and at the end of the region, and gives memory back meanwhile.
func TestRegionsHoldWhatAMapDoesWhileTheyGrow(t *testing.T) {
	for _, buckets := range []int{1, 7, 200} {
		u := newUser(t, buckets)
		for step := range 9000 {
			if u.g.IntN(100) < []int{90, 40, 65}[step/3000] {
				u.add()
			} else {
				u.remove()
			}
			if step%500 == 0 || u.next != nil && step%25 == 0 {
				u.check()
			}
		}
		u.check()
		if u.wraps == 0 || u.grew == 0 || u.gave == 0 {
			t.Errorf("%d buckets: %d records wrapped, %d growths, %d bytes given back: nothing was tested", buckets, u.wraps, u.grew, u.gave)
		}
	}
}

// More records of one bucket than it counts are found as long as there is one, and so are others that
// lie after them.
func TestBucketOfManyIsSearchedToTheEnd(t *testing.T) {
	u := newUser(t, 200)
	for range 400 {
		u.place(1<<62 | u.g.Uint64()>>16)
	}
	for range 100 {
		u.place(u.g.Uint64())
	}
	u.check()
	for len(u.refs) > 0 {
		u.remove()
		if len(u.refs)%50 == 0 {
			u.check()
		}
	}
}

// A region is the same after it was written to a file and read again.
func TestRegionIsTheSameFromItsBlocks(t *testing.T) {
	u := newUser(t, hashtable.RunBuckets+10)
	for range 5000 {
		u.add()
	}
	u.check()
	to := region(t, len(u.old.Buckets))
	from, blocks := u.old.Blocks(), to.Blocks()
	if len(from) != 2 || len(blocks) != 2 || len(from[0]) != hashtable.RunBuckets*hashtable.BucketBytes || len(from[1]) != 10*hashtable.BucketBytes {
		t.Fatalf("%d and %d blocks", len(from), len(blocks))
	}
	for i := range from {
		copy(blocks[i], bytes.Clone(from[i]))
	}
	to.SetWraps(u.old.Wraps())
	u.old.Free()
	u.old = to
	u.check()
	if u.wraps == 0 {
		t.Error("no record wrapped")
	}
	if hashtable.AsBytes[uint64](nil) != nil {
		t.Error("nothing has bytes")
	}
}

// Matches has each slot of a tag, and the first it names is one: a look-up that takes the first
// without a look at the tag relies on it.
func TestMatchesAreExactUpToTheFirst(t *testing.T) {
	g := seed.Random(t, 0)
	tags := []uint8{0, 1, 2, 127, 128, 129, 254, 255}
	for range 20_000 {
		var b hashtable.Bucket
		for slot := range b.Tags {
			b.Tags[slot] = tags[g.IntN(len(tags))]
			b.Refs[slot] = hashtable.Ref(slot)
		}
		for _, tag := range tags {
			want := make(map[int]bool)
			for slot, other := range b.Tags {
				if other == tag {
					want[slot] = true
				}
			}
			first, second := b.Matches(tag)
			got := make(map[int]bool)
			leastOf := [2]int{-1, -1}
			for slot := range b.Tags {
				half, word, bit := 0, first, slot
				if slot >= 8 {
					half, word, bit = 1, second, slot-8
				}
				if word>>(8*bit+7)&1 == 1 {
					got[slot] = true
					if leastOf[half] < 0 {
						leastOf[half] = slot
					}
				}
			}
			for slot := range want {
				if !got[slot] {
					t.Fatalf("tag %d in %v: slot %d is missing of %v", tag, b.Tags, slot, slices.Sorted(maps.Keys(got)))
				}
			}
			for _, slot := range leastOf {
				if slot >= 0 && !want[slot] {
					t.Fatalf("tag %d in %v: the first match is slot %d", tag, b.Tags, slot)
				}
			}
		}
	}
}

// All memory is populated once, and none beyond what is asked for.
func TestMemoryIsPopulatedPieceByPiece(t *testing.T) {
	const piece = 3 * unit
	r := region(t, 1000)
	defer r.Free()
	populated := 0
	for until := range r.Bytes() + 2*piece {
		for part := r.Unpopulated(until, piece); part != nil; part = r.Unpopulated(until, piece) {
			at := int(uintptr(unsafe.Pointer(&part[0])) - uintptr(unsafe.Pointer(&r.Buckets[0])))
			if at != populated || at >= until || len(part) > piece {
				t.Fatalf("%d bytes at %d up to %d, %d are populated", len(part), at, until, populated)
			}
			populated += len(part)
			r.NotePopulated(len(part))
		}
	}
	if populated != r.Bytes() || r.Bytes() < 1000*hashtable.BucketBytes {
		t.Errorf("%d bytes of %d are populated", populated, r.Bytes())
	}
}

func TestHeldMemoryIsWhatWasNotGivenBack(t *testing.T) {
	for _, kept := range []int{0, unit} {
		r := region(t, 1024)
		defer r.Free()
		if r.Held(kept) != int64(r.Bytes()) {
			t.Errorf("%d bytes of %d at first", r.Held(kept), r.Bytes())
		}
		part := r.Emptied(500, unit, kept)
		if at := len(r.Buckets)*hashtable.BucketBytes - cap(part); len(part) > 0 && at < kept {
			t.Errorf("the front is given back from byte %d on, %d are to be kept", at, kept)
		}
		r.GiveBack(part)
		given := 500 * hashtable.BucketBytes / unit * unit
		if r.GivenBytes() != given || r.Held(kept) != int64(r.Bytes()-given+kept) {
			t.Errorf("%d of %d bytes are held, %d were given back", r.Held(kept), r.Bytes(), r.GivenBytes())
		}
	}
}
