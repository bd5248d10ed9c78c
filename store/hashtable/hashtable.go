// Package hashtable has the regions of a hash table that grows by moving bucket after bucket into a
// larger region. A region knows references and tags; the identities are its user's.
package hashtable

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/kvconn/kvconn/store/offheap"
)

// Ref is what a region keeps: the position of an entry in its user's table.
type Ref uint32

// NoRef is no entry.
const NoRef = Ref(1<<32 - 1)

// Region is one hash table in one mapping, so that it gets huge pages: in small ones a
// lookup would miss the translation buffer with every key.
type Region struct {
	Buckets []Bucket
	memory  []byte
	// wrapped is past the last bucket that ever held a record which belongs at the end of
	// the region.
	wrapped int
	// given is how much of the memory's front was given back, populated how much of it was
	// populated.
	given, populated int
	// giving is held while memory is given back or the mapping is taken away, and to change
	// wrapped. It is taken after the index's lock.
	giving sync.Mutex
}

const (
	// BucketSlots references and their tags fill a cache line: a lookup misses the cache
	// once here and once for the entry.
	BucketSlots = 12
	// BucketBytes is the size of a bucket.
	BucketBytes = 64
	lowBytes    = 0x0101010101010101
	highBits    = 0x8080808080808080
	lowHalf     = 1<<32 - 1
	maxPassed   = 1<<8 - 1
)

// Bucket is one cache line of a hash table.
type Bucket struct {
	// Tags holds one byte of the hash for each reference, 0 where there is none.
	Tags [BucketSlots]uint8
	_    [3]uint8
	// Passed counts the records that belong here or before and lie in a later bucket, as
	// this one was full: where it is 0 a search ends. At maxPassed it stays.
	Passed uint8
	Refs   [BucketSlots]Ref
}

// Hash mixes an identity: a key, and the number of what the key belongs to. Keys are hashes already; a
// multiplication spreads them over bucket and tag even where a caller's keys are not.
func Hash(key *[16]byte, of uint64) uint64 {
	h := binary.LittleEndian.Uint64(key[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(key[8:]), 29)
	h ^= of * 0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h * 0xD6E8FEB86659FD93
}

// TagOf takes bits that have no part in the choice of a bucket.
func TagOf(h uint64) uint8 { return max(uint8(h>>8), 1) }

// Home is the bucket where a record belongs. Greater hashes belong in later buckets,
// whatever the size of the region.
func (r *Region) Home(h uint64) int {
	at, _ := bits.Mul64(h, uint64(len(r.Buckets)))
	return int(at)
}

// Matches returns the slots that hold tag, as the high bits of 8 and of 4 bytes. There are
// rare false ones, after a true one: even an empty slot, whose reference is out of date.
func (b *Bucket) Matches(tag uint8) (first, second uint64) {
	x := binary.LittleEndian.Uint64(b.Tags[:8]) ^ lowBytes*uint64(tag)
	y := uint64(binary.LittleEndian.Uint32(b.Tags[8:])) ^ lowBytes*uint64(tag)&lowHalf
	return (x - lowBytes) &^ x & highBits, (y - lowBytes) &^ y & highBits & lowHalf
}

// free returns a slot that holds nothing, or -1.
func (b *Bucket) free() int {
	first, second := b.Matches(0)
	switch {
	case first != 0:
		return bits.TrailingZeros64(first) / 8
	case second != 0:
		return 8 + bits.TrailingZeros64(second)/8
	}
	return -1
}

// FirstTags are the tags that [Bucket.Candidate] wants first.
func (b *Bucket) FirstTags() uint64 { return binary.LittleEndian.Uint64(b.Tags[:8]) }

// Candidate returns the first reference whose tag fits, without looking at its entry, or
// NoRef. first are the bucket's first tags.
func (b *Bucket) Candidate(first uint64, tag uint8) Ref {
	x := first ^ lowBytes*uint64(tag)
	if x = (x - lowBytes) &^ x & highBits; x != 0 {
		return b.Refs[bits.TrailingZeros64(x)/8]
	}
	if _, second := b.Matches(tag); second != 0 {
		return b.Refs[8+bits.TrailingZeros64(second)/8]
	}
	return NoRef
}

// After is the bucket after one; the first comes after the last.
func (r *Region) After(at int) int {
	if at++; at == len(r.Buckets) {
		return 0
	}
	return at
}

// Place puts a reference into the bucket home, or the next one that has a free slot. The region
// must not be full.
func (r *Region) Place(home int, h uint64, ref Ref) {
	at := home
	for {
		b := &r.Buckets[at]
		if slot := b.free(); slot >= 0 {
			if at < home {
				r.noteWrap(at)
			}
			b.Tags[slot], b.Refs[slot] = TagOf(h), ref
			return
		}
		if b.Passed < maxPassed {
			b.Passed++
		}
		at = r.After(at)
	}
}

// Take empties a slot that holds a record which belongs in the bucket home.
func (r *Region) Take(home, at, slot int) {
	for b := home; b != at; b = r.After(b) {
		if r.Buckets[b].Passed < maxPassed {
			r.Buckets[b].Passed--
		}
	}
	r.Buckets[at].Tags[slot] = 0
}

// Move moves what belongs in the bucket home to another region. hashOf is the hash of what a reference is of.
func (r *Region) Move(home int, to *Region, hashOf func(Ref) uint64) {
	for at, n := home, 0; n < len(r.Buckets) && r.moveFrom(at, home, to, hashOf); n++ {
		at = r.After(at)
	}
}

// moveFrom moves what lies in one bucket and belongs in home, and reports whether there may be more in later ones.
func (r *Region) moveFrom(at, home int, to *Region, hashOf func(Ref) uint64) bool {
	b := &r.Buckets[at]
	more := b.Passed > 0
	// All are read before any is used: their cache misses overlap.
	var hashes [BucketSlots]uint64
	for slot, tag := range b.Tags {
		if tag != 0 {
			hashes[slot] = hashOf(b.Refs[slot])
		}
	}
	for slot, tag := range b.Tags {
		if tag != 0 && r.Home(hashes[slot]) == home {
			ref := b.Refs[slot]
			r.Take(home, at, slot)
			to.Place(to.Home(hashes[slot]), hashes[slot], ref)
		}
	}
	return more
}

// NewRegion maps a region of that many empty buckets.
func NewRegion(buckets int) (*Region, error) {
	b, err := offheap.Map(buckets * BucketBytes)
	if err != nil {
		return nil, err
	}
	return &Region{memory: b, Buckets: unsafe.Slice((*Bucket)(unsafe.Pointer(unsafe.SliceData(b))), buckets)}, nil
}

// Free unmaps a region, if it is not nil.
func (r *Region) Free() {
	if r != nil && r.memory != nil {
		r.giving.Lock()
		defer r.giving.Unlock()
		_ = offheap.Unmap(r.memory)
	}
}

// noteWrap notes that a record which belongs at the end comes to lie in a bucket at the
// beginning. It is called before the record is written there.
func (r *Region) noteWrap(at int) {
	if at < r.wrapped {
		return
	}
	r.giving.Lock()
	defer r.giving.Unlock()
	r.wrapped = at + 1
}

// Wraps is past the last bucket that ever held a record which belongs at the end of the region.
func (r *Region) Wraps() int { return r.wrapped }

// SetWraps sets that of a region that is filled from a snapshot.
func (r *Region) SetWraps(wrapped int) { r.wrapped = wrapped }

// Bytes is the memory of the region, given back or not.
func (r *Region) Bytes() int { return len(r.memory) }

// Held is the memory that was not given back, if kept bytes of the front are not.
func (r *Region) Held(kept int) int64 { return int64(len(r.memory) - r.given + min(r.given, kept)) }

// GivenBytes is how much of the front was given back.
func (r *Region) GivenBytes() int { return r.given }

// Emptied returns the memory of the first moved buckets that is to be given back, in units of that
// many bytes: they are empty but for records that wrapped. kept bytes of the front are left out. The
// caller calls [Region.GiveBack].
func (r *Region) Emptied(moved, unit, kept int) (part []byte) {
	r.giving.Lock()
	from, to := r.given, moved*BucketBytes&^(unit-1)
	r.given = to
	from = max(from, kept, (r.wrapped*BucketBytes+unit-1)&^(unit-1))
	return r.memory[min(from, to):to]
}

// GiveBack gives the system what [Region.Emptied] returned. It takes the kernel a while.
func (r *Region) GiveBack(part []byte) {
	_ = offheap.Discard(part) // advice: it is given back at the end in any case
	r.giving.Unlock()
}

// Unpopulated is the next piece of the first until bytes that was not populated, or nil.
func (r *Region) Unpopulated(until, piece int) []byte {
	if r.populated >= min(until, len(r.memory)) {
		return nil
	}
	return r.memory[r.populated:min(r.populated+piece, len(r.memory))]
}

// NotePopulated notes that a piece of that many bytes was populated.
func (r *Region) NotePopulated(bytes int) { r.populated += bytes }

// RunBuckets is how many buckets are in a block of a snapshot.
const RunBuckets = 1 << 16 // 4 MiB

// Blocks are the buckets as bytes, [RunBuckets] in each but the last. They alias the region's memory.
func (r *Region) Blocks() [][]byte {
	var out [][]byte
	for b := range slices.Chunk(r.Buckets, RunBuckets) {
		out = append(out, AsBytes(b))
	}
	return out
}

// AsBytes is the memory of s.
func AsBytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}
