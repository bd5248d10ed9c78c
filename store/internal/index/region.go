package index

import (
	"unsafe"

	"github.com/kvconn/kvconn/store/internal/disk"
)

// region is the memory of all hash tables, in one mapping so that it gets huge pages: in
// small ones a lookup would miss the translation buffer with every key.
type region struct {
	memory  []byte
	buckets int // of each shard
}

// minShardBuckets is the size of a shard in the first region.
const minShardBuckets = 2

func newRegion(bucketsOfAShard int) (*region, error) {
	b, err := disk.Map(hashShards * bucketsOfAShard * bucketBytes)
	if err != nil {
		return nil, err
	}
	return &region{memory: b, buckets: bucketsOfAShard}, nil
}

func (r *region) shard(i int) []bucket {
	all := unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(r.memory))), hashShards*r.buckets)
	return all[i*r.buckets : (i+1)*r.buckets : (i+1)*r.buckets]
}

func (r *region) free() {
	if r != nil {
		_ = disk.Unmap(r.memory)
	}
}

// grow moves a shard to a region half as large again: less memory stands empty than with
// doubling. The other shards follow, one with each batch of insertions, so that no one
// waits for all of them.
func (t *Table) grow(i int) {
	if t.next != nil && t.moved[i] {
		t.moveAll() // its share of the keys is far from even
	}
	if t.next == nil {
		n := minShardBuckets
		if t.region != nil {
			n = t.region.buckets + (t.region.buckets+1)/2
		}
		next, err := newRegion(n)
		if err != nil {
			// As with any memory that the system does not have.
			panic("index: cannot map the hash tables: " + err.Error())
		}
		t.next, t.left = next, hashShards
	}
	t.move(i)
}

// move takes a shard over to the next region.
func (t *Table) move(i int) {
	s := &t.shards[i]
	old := s.buckets
	s.buckets = t.next.shard(i)
	for b := range old {
		for slot, tag := range old[b].tags {
			if tag != 0 {
				ref := old[b].refs[slot]
				s.place(t.entry(ref).hash(), ref)
			}
		}
	}
	t.moved[i] = true
	if t.left--; t.left == 0 {
		t.region.free()
		t.region, t.next = t.next, nil
		t.moved = [hashShards]bool{}
	}
}

// moveOne moves the next shard if there is one to move.
func (t *Table) moveOne() {
	for i := 0; t.next != nil && i < hashShards; i++ {
		if !t.moved[i] {
			t.move(i)
			return
		}
	}
}

func (t *Table) moveAll() {
	for t.next != nil {
		t.moveOne()
	}
}
