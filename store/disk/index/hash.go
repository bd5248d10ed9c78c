package index

import (
	"encoding/binary"
	"math/bits"

	"github.com/kvconn/kvconn/connector"
)

const (
	// bucketSlots references and their tags fill a cache line: a lookup misses the cache
	// once here and once for the entry.
	bucketSlots = 12
	bucketBytes = 64
	// Up to a load of 7/8 few records lie outside their own bucket.
	maxLoadNum, maxLoadDen = 7, 8
	lowBytes               = 0x0101010101010101
	highBits               = 0x8080808080808080
	lowHalf                = 1<<32 - 1
	maxPassed              = 1<<8 - 1
)

// bucket is one cache line of a hash table.
type bucket struct {
	// tags holds one byte of the hash for each reference, 0 where there is none.
	tags [bucketSlots]uint8
	_    [3]uint8
	// passed counts the records that belong here or before and lie in a later bucket, as
	// this one was full: where it is 0 a search ends. At maxPassed it stays.
	passed uint8
	refs   [bucketSlots]Ref
}

// hash mixes an identity. Keys are hashes already; a multiplication spreads them over
// bucket and tag even where a caller's keys are not.
func (id *ID) hash() uint64 { return hashOf(id.Namespace, id.Shard, &id.Key) }

func hashOf(namespace uint16, shard connector.Shard, key *connector.Key) uint64 {
	h := binary.LittleEndian.Uint64(key[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(key[8:]), 29)
	h ^= (uint64(namespace)<<16 | uint64(shard)) * 0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h * 0xD6E8FEB86659FD93
}

func (e *entry) hash() uint64 { return hashOf(e.namespace, e.shard, &e.key) }

// tagOf takes bits that have no part in the choice of a bucket.
func tagOf(h uint64) uint8 { return max(uint8(h>>8), 1) }

// home is the bucket where a record belongs. Greater hashes belong in later buckets,
// whatever the size of the region.
func (r *region) home(h uint64) int {
	at, _ := bits.Mul64(h, uint64(len(r.buckets)))
	return int(at)
}

// home returns the region that holds the records of a hash, and their bucket there.
func (t *Table) home(h uint64) (r *region, at int) {
	r = t.region
	at = r.home(h)
	if at < t.moved {
		r = t.next
		at = r.home(h)
	}
	return r, at
}

// matches returns the slots that hold tag, as the high bits of 8 and of 4 bytes. There are
// rare false ones, after a true one: even an empty slot, whose reference is out of date.
func (b *bucket) matches(tag uint8) (first, second uint64) {
	x := binary.LittleEndian.Uint64(b.tags[:8]) ^ lowBytes*uint64(tag)
	y := uint64(binary.LittleEndian.Uint32(b.tags[8:])) ^ lowBytes*uint64(tag)&lowHalf
	return (x - lowBytes) &^ x & highBits, (y - lowBytes) &^ y & highBits & lowHalf
}

// free returns a slot that holds nothing, or -1.
func (b *bucket) free() int {
	first, second := b.matches(0)
	switch {
	case first != 0:
		return bits.TrailingZeros64(first) / 8
	case second != 0:
		return 8 + bits.TrailingZeros64(second)/8
	}
	return -1
}

func (b *bucket) firstTags() uint64 { return binary.LittleEndian.Uint64(b.tags[:8]) }

// candidate returns the first reference whose tag fits, without looking at its entry, or
// NoRef. first are the bucket's first tags.
func (b *bucket) candidate(first uint64, tag uint8) Ref {
	x := first ^ lowBytes*uint64(tag)
	if x = (x - lowBytes) &^ x & highBits; x != 0 {
		return b.refs[bits.TrailingZeros64(x)/8]
	}
	if _, second := b.matches(tag); second != 0 {
		return b.refs[8+bits.TrailingZeros64(second)/8]
	}
	return NoRef
}

// position finds id and returns where it is, or false.
func (t *Table) position(h uint64, id *ID) (r *region, at, slot int, ok bool) {
	tag := tagOf(h)
	r, at = t.home(h)
	for range r.buckets {
		b := &r.buckets[at]
		first, second := b.matches(tag)
		for ; first != 0; first &= first - 1 {
			if slot = bits.TrailingZeros64(first) / 8; b.tags[slot] == tag && t.entry(b.refs[slot]).is(id) {
				return r, at, slot, true
			}
		}
		for ; second != 0; second &= second - 1 {
			if slot = 8 + bits.TrailingZeros64(second)/8; b.tags[slot] == tag && t.entry(b.refs[slot]).is(id) {
				return r, at, slot, true
			}
		}
		if b.passed == 0 {
			break
		}
		at = r.after(at)
	}
	return nil, 0, 0, false
}

// findHash returns the slot of the record whose identity has that hash, the lowest bit
// aside, or NoRef.
func (t *Table) findHash(h uint64) Ref {
	tag := tagOf(h)
	r, at := t.home(h)
	for range r.buckets {
		b := &r.buckets[at]
		for slot, other := range b.tags {
			if other == tag && t.entry(b.refs[slot]).hash()>>1 == h>>1 {
				return b.refs[slot]
			}
		}
		if b.passed == 0 {
			break
		}
		at = r.after(at)
	}
	return NoRef
}

func (r *region) after(at int) int {
	if at++; at == len(r.buckets) {
		return 0
	}
	return at
}

// find returns the slot of a record, or NoRef.
func (t *Table) find(id *ID) Ref {
	if r, at, slot, ok := t.position(id.hash(), id); ok {
		return r.buckets[at].refs[slot]
	}
	return NoRef
}

// put adds a reference whose identity is not in the table.
func (t *Table) put(h uint64, ref Ref) {
	t.makeRoom()
	r, at := t.home(h)
	r.place(at, h, ref)
}

func (r *region) place(home int, h uint64, ref Ref) {
	at := home
	for {
		b := &r.buckets[at]
		if slot := b.free(); slot >= 0 {
			if at < home {
				r.noteWrap(at)
			}
			b.tags[slot], b.refs[slot] = tagOf(h), ref
			return
		}
		if b.passed < maxPassed {
			b.passed++
		}
		at = r.after(at)
	}
}

// cut removes the reference of a record that is in the table. No tombstone stays.
func (t *Table) cut(id *ID) Ref {
	h := id.hash()
	r, at, slot, ok := t.position(h, id)
	if !ok {
		panic("index: an entry is not in the table that it belongs to")
	}
	r.take(r.home(h), at, slot)
	return r.buckets[at].refs[slot]
}

// take empties a slot that holds a record which belongs in the bucket home.
func (r *region) take(home, at, slot int) {
	for b := home; b != at; b = r.after(b) {
		if r.buckets[b].passed < maxPassed {
			r.buckets[b].passed--
		}
	}
	r.buckets[at].tags[slot] = 0
}
