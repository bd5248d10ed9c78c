package index

import (
	"encoding/binary"
	"math/bits"
)

const (
	hashShards  = 256
	minCapacity = 16
	// Linear probing over one-byte tags stays within a cache line or two up to this load.
	maxLoadNum, maxLoadDen = 17, 20
	lowBytes               = 0x0101010101010101
	highBits               = 0x8080808080808080
	wordTags               = 8
)

// hash mixes an identity. Keys are hashes already; a multiplication spreads them over
// shard, position and tag even where a caller's keys are not.
func (id *ID) hash() uint64 {
	h := binary.LittleEndian.Uint64(id.Key[:8]) ^ bits.RotateLeft64(binary.LittleEndian.Uint64(id.Key[8:]), 29)
	h ^= (uint64(id.Namespace)<<16 | uint64(id.Shard)) * 0x9E3779B97F4A7C15
	h *= 0xD6E8FEB86659FD93
	h ^= h >> 32
	return h * 0xD6E8FEB86659FD93
}

// hashShard is one open-addressing table. tags holds one byte for each position (0 is
// empty), followed by a copy of the first ones so that eight can be read at any position.
type hashShard struct {
	tags  []uint8
	refs  []Ref
	count int
}

func shardOf(h uint64) int { return int(h >> 56) }

func tagOf(h uint64) uint8 { return max(uint8(h>>40), 1) }

func (s *hashShard) home(h uint64) int {
	return int(uint64(uint32(h)) * uint64(len(s.refs)) >> 32)
}

func (s *hashShard) word(at int) uint64 { return binary.LittleEndian.Uint64(s.tags[at:]) }

func (s *hashShard) setTag(at int, tag uint8) {
	s.tags[at] = tag
	if at < wordTags {
		s.tags[len(s.refs)+at] = tag
	}
}

// matches returns, as high bits of bytes, the positions of a word of tags that hold tag
// and come before the first empty one (with rare false ones), and whether there is an
// empty one.
func matches(word uint64, tag uint8) (found uint64, empty bool) {
	x := word ^ lowBytes*uint64(tag)
	found = (x - lowBytes) &^ x & highBits
	free := (word - lowBytes) &^ word & highBits
	if free != 0 {
		found &= (free & -free) - 1
	}
	return found, free != 0
}

// candidate returns the first reference whose tag fits, without looking at its entry.
func (s *hashShard) candidate(h uint64) Ref {
	if len(s.refs) == 0 {
		return NoRef
	}
	at := s.home(h)
	found, _ := matches(s.word(at), tagOf(h))
	if found == 0 {
		return NoRef
	}
	at += bits.TrailingZeros64(found) / 8
	if at >= len(s.refs) {
		at -= len(s.refs)
	}
	return s.refs[at]
}

// position finds id and returns its position, or -1.
func (t *Table) position(s *hashShard, h uint64, id *ID) int {
	if len(s.refs) == 0 {
		return -1
	}
	for at, tag := s.home(h), tagOf(h); ; {
		found, empty := matches(s.word(at), tag)
		for ; found != 0; found &= found - 1 {
			p := at + bits.TrailingZeros64(found)/8
			if p >= len(s.refs) {
				p -= len(s.refs)
			}
			if t.entry(s.refs[p]).is(id) {
				return p
			}
		}
		if empty {
			return -1
		}
		if at += wordTags; at >= len(s.refs) {
			at -= len(s.refs)
		}
	}
}

// put adds a reference whose identity is not in the shard.
func (t *Table) put(s *hashShard, h uint64, ref Ref) {
	if (s.count+1)*maxLoadDen > len(s.refs)*maxLoadNum {
		t.grow(s)
	}
	s.place(h, ref)
	s.count++
}

func (s *hashShard) place(h uint64, ref Ref) {
	at := s.home(h)
	for s.tags[at] != 0 {
		if at++; at == len(s.refs) {
			at = 0
		}
	}
	s.refs[at] = ref
	s.setTag(at, tagOf(h))
}

// grow enlarges a shard by half: less memory stands empty than with doubling.
func (t *Table) grow(s *hashShard) {
	old := *s
	s.resize(max(minCapacity, len(old.refs)+len(old.refs)/2))
	for p, ref := range old.refs {
		if old.tags[p] != 0 {
			s.place(t.entry(ref).hash(), ref)
		}
	}
}

func (s *hashShard) resize(capacity int) {
	s.refs = make([]Ref, capacity)
	s.tags = make([]uint8, capacity+wordTags)
}

func (e *entry) hash() uint64 {
	id := ID{Namespace: e.namespace, Shard: e.shard, Key: e.key}
	return id.hash()
}

// removeAt empties a position and moves later entries of the run back, so that no
// tombstones gather under churn.
func (t *Table) removeAt(s *hashShard, hole int) {
	n := len(s.refs)
	for at := hole; ; {
		if at++; at == n {
			at = 0
		}
		if s.tags[at] == 0 {
			break
		}
		home := s.home(t.entry(s.refs[at]).hash())
		if (at-home+n)%n >= (at-hole+n)%n {
			s.refs[hole] = s.refs[at]
			s.setTag(hole, s.tags[at])
			hole = at
		}
	}
	s.setTag(hole, 0)
	s.count--
}
