package host

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"

	"github.com/kvconn/kvconn/connector"
)

// index finds slots by what they hold: a hash table that grows by one bucket at a time
// (linear hashing, Litwin 1980), so that no insertion ever moves more than a bucket.
type index struct {
	seed   [3]uint64
	chunks [][]slotID
	// buckets is between 1<<level and 1<<(level+1): those below have been split.
	buckets, level uint
	len            int
}

const (
	chunkBits  = 14
	firstLevel = 10
)

func newIndex() index {
	x := index{seed: [3]uint64{rand.Uint64(), rand.Uint64(), rand.Uint64()}, level: firstLevel, buckets: 1 << firstLevel}
	x.chunks = append(x.chunks, make([]slotID, 1<<chunkBits))
	return x
}

// hash returns the hash of a record's id. Keys come from prompts, which anybody may write: the
// seed keeps anybody from choosing prompts that fall into one bucket.
func (x *index) hash(id *slotKey) uint64 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(id.key[:])^x.seed[0], binary.LittleEndian.Uint64(id.key[8:])^x.seed[1])
	h := hi ^ lo ^ uint64(id.ns)<<16 ^ uint64(id.shard)
	hi, lo = bits.Mul64(h^x.seed[2], 0x9e3779b97f4a7c15)
	return hi ^ lo
}

// bucket returns the head of the chain of a hash.
func (x *index) bucket(hash uint64) *slotID {
	b := uint(hash) & (2<<x.level - 1)
	if b >= x.buckets {
		b = uint(hash) & (1<<x.level - 1)
	}
	return &x.chunks[b>>chunkBits][b&(1<<chunkBits-1)]
}

// find returns the slot of a record's id, 0 if there is none.
func (a *Arena) find(hash uint64, id *slotKey) slotID {
	for at := *a.index.bucket(hash); at != 0; {
		s := a.slot(at)
		if s.hash == hash && s.ns == id.ns && s.shard == id.shard {
			return at
		}
		at = s.chain
	}
	return 0
}

// insert makes a slot findable, whose record is set.
func (a *Arena) insert(id slotID) {
	x := &a.index
	s := a.slot(id)
	head := x.bucket(s.hash)
	s.chain, *head = *head, id
	if x.len++; x.len > int(x.buckets) {
		a.splitBucket()
	}
}

// splitBucket shares the records of the next bucket out between it and a new one.
func (a *Arena) splitBucket() {
	x := &a.index
	if x.buckets>>chunkBits == uint(len(x.chunks)) {
		x.chunks = append(x.chunks, make([]slotID, 1<<chunkBits))
	}
	from := x.buckets - 1<<x.level
	old, fresh := &x.chunks[from>>chunkBits][from&(1<<chunkBits-1)], &x.chunks[x.buckets>>chunkBits][x.buckets&(1<<chunkBits-1)]
	at := *old
	*old, *fresh = 0, 0
	for at != 0 {
		s := a.slot(at)
		next := s.chain
		to := old
		if uint(s.hash)&(2<<x.level-1) != from {
			to = fresh
		}
		s.chain, *to = *to, at
		at = next
	}
	if x.buckets++; x.buckets == 2<<x.level {
		x.level++
	}
}

// remove makes a slot unfindable.
func (a *Arena) remove(id slotID) {
	s := a.slot(id)
	at := a.index.bucket(s.hash)
	for *at != id {
		at = &a.slot(*at).chain
	}
	*at, s.chain = s.chain, 0
	a.index.len--
}

// slotRecord is a record as slots know it: what a slot is found by, and what its bytes are of.
type slotRecord struct {
	slotKey
	proof     connector.Proof
	parent    uint16 // check of the parent's key
	anyParent bool   // the caller does not know it
}

// set notes what a slot holds, or will hold.
func (s *slot) set(r *slotRecord, hash uint64) {
	s.hash, s.ns, s.shard, s.proof, s.parent = hash, r.ns, r.shard, r.proof, r.parent
}

// holds reports whether a slot is of that very record. One that is filled for any parent is so for others of these.
func (s *slot) holds(r *slotRecord, hash uint64) bool {
	return s.hash == hash && s.ns == r.ns && s.shard == r.shard && s.proof == r.proof && (r.anyParent || s.parent == r.parent)
}

// unknownParent is no parent's check: one that is filled for any parent has it until the parent is known.
const unknownParent = 0

// parentCheck is what a slot keeps of its parent's key, which follows from the proof.
func parentCheck(k connector.Key) uint16 {
	hi, lo := bits.Mul64(binary.LittleEndian.Uint64(k[:])+0x9e3779b97f4a7c15, binary.LittleEndian.Uint64(k[8:])+0xbf58476d1ce4e5b9)
	v := hi ^ lo
	v ^= v >> 32
	return max(unknownParent+1, uint16(v^v>>16))
}
