package index

import (
	"encoding/binary"
	"math/bits"
)

const (
	hashShards = 256
	// bucketSlots references and their tags fill a cache line: a lookup misses the cache
	// once here and once for the entry.
	bucketSlots = 12
	// Up to a load of 7/8 few records lie outside their own bucket. A single shard of a
	// small table may be fuller.
	maxLoadNum, maxLoadDen   = 7, 8
	maxShardNum, maxShardDen = 15, 16
	lowBytes                 = 0x0101010101010101
	highBits                 = 0x8080808080808080
	lowHalf                  = 1<<32 - 1
	maxPassed                = 1<<8 - 1
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

// hashShard is one open-addressing table.
type hashShard struct {
	buckets []bucket
	count   int
}

// hash mixes an identity. Keys are hashes already; a multiplication spreads them over
// shard, bucket and tag even where a caller's keys are not.
func (id *ID) hash() uint64 {
	h := binary.LittleEndian.Uint64(id.Key[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(id.Key[8:]), 29)
	h ^= (uint64(id.Namespace)<<16 | uint64(id.Shard)) * 0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h * 0xD6E8FEB86659FD93
}

func (e *entry) hash() uint64 {
	id := ID{Namespace: e.namespace, Shard: e.shard, Key: e.key}
	return id.hash()
}

func shardOf(h uint64) int { return int(h >> 56) }

func tagOf(h uint64) uint8 { return max(uint8(h>>40), 1) }

func (s *hashShard) home(h uint64) int {
	return int(uint64(uint32(h)) * uint64(len(s.buckets)) >> 32)
}

// matches returns the slots that hold tag, as the high bits of 8 and of 4 bytes. There are
// rare false ones, behind a true one.
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

// position finds id and returns its bucket and its slot there, or false.
func (t *Table) position(s *hashShard, h uint64, id *ID) (at, slot int, ok bool) {
	if len(s.buckets) == 0 {
		return 0, 0, false
	}
	tag := tagOf(h)
	at = s.home(h)
	for range s.buckets {
		b := &s.buckets[at]
		first, second := b.matches(tag)
		for ; first != 0; first &= first - 1 {
			if slot = bits.TrailingZeros64(first) / 8; t.entry(b.refs[slot]).is(id) {
				return at, slot, true
			}
		}
		for ; second != 0; second &= second - 1 {
			if slot = 8 + bits.TrailingZeros64(second)/8; t.entry(b.refs[slot]).is(id) {
				return at, slot, true
			}
		}
		if b.passed == 0 {
			break
		}
		at = s.after(at)
	}
	return 0, 0, false
}

// findHash returns the slot of the record whose identity has that hash, the lowest bit
// aside, or NoRef.
func (t *Table) findHash(h uint64) Ref {
	s := &t.shards[shardOf(h)]
	if len(s.buckets) == 0 {
		return NoRef
	}
	tag := tagOf(h)
	at := s.home(h)
	for range s.buckets {
		b := &s.buckets[at]
		for slot, other := range b.tags {
			if other == tag && t.entry(b.refs[slot]).hash()>>1 == h>>1 {
				return b.refs[slot]
			}
		}
		if b.passed == 0 {
			break
		}
		at = s.after(at)
	}
	return NoRef
}

func (s *hashShard) after(at int) int {
	if at++; at == len(s.buckets) {
		return 0
	}
	return at
}

// find returns the slot of a record, or NoRef.
func (t *Table) find(id *ID) Ref {
	h := id.hash()
	s := &t.shards[shardOf(h)]
	if at, slot, ok := t.position(s, h, id); ok {
		return s.buckets[at].refs[slot]
	}
	return NoRef
}

// put adds a reference whose identity is not in the table.
func (t *Table) put(h uint64, ref Ref) {
	s := &t.shards[shardOf(h)]
	for t.crowded(s) {
		t.grow(shardOf(h))
	}
	s.place(h, ref)
	s.count++
}

// crowded reports whether a shard must grow before it takes another record.
func (t *Table) crowded(s *hashShard) bool {
	room := len(s.buckets) * bucketSlots
	return (s.count+1)*maxShardDen > room*maxShardNum ||
		(s.count+1)*maxLoadDen > room*maxLoadNum && (t.count+1)*maxLoadDen > room*hashShards*maxLoadNum
}

func (s *hashShard) place(h uint64, ref Ref) {
	at := s.home(h)
	for {
		b := &s.buckets[at]
		if slot := b.free(); slot >= 0 {
			b.tags[slot], b.refs[slot] = tagOf(h), ref
			return
		}
		if b.passed < maxPassed {
			b.passed++
		}
		at = s.after(at)
	}
}

// cut removes the reference of a record that is in the table. No tombstone stays.
func (t *Table) cut(id *ID) Ref {
	h := id.hash()
	s := &t.shards[shardOf(h)]
	at, slot, ok := t.position(s, h, id)
	if !ok {
		panic("index: an entry is not in the table that it belongs to")
	}
	for b := s.home(h); b != at; b = s.after(b) {
		if s.buckets[b].passed < maxPassed {
			s.buckets[b].passed--
		}
	}
	s.buckets[at].tags[slot] = 0
	s.count--
	return s.buckets[at].refs[slot]
}
