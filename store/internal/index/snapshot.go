package index

import (
	"fmt"
	"unsafe"
)

// Image is the table as blocks of bytes, for a snapshot. The blocks alias the table's
// memory; the table must not change while they are in use.
type Image struct {
	Limit  Ref
	Clock  uint32
	Count  int
	Bytes  int64
	Spare  []Range
	Shards [hashShards]ShardImage
	// Entries are the entries of slots 0 to Limit in runs of at most ImageRun slots.
	Entries [][]byte
}

// ShardImage is one hash table.
type ShardImage struct {
	Count   int
	Buckets []byte
}

// HashShards is the number of hash tables, ImageRun the number of slots in a block of
// entries, EntryBytes and BucketBytes the sizes of an entry and of a bucket.
const (
	HashShards  = hashShards
	ImageRun    = chunkEntries
	EntryBytes  = entryBytes
	BucketBytes = bucketBytes
)

const bucketBytes = 64

// Image returns the table's memory.
func (t *Table) Image() Image {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moveAll()
	im := Image{Limit: t.limit, Clock: t.clock.Load(), Count: t.count, Bytes: t.bytes}
	for _, f := range t.spare {
		im.Spare = append(im.Spare, Range{f.base, f.slots})
	}
	for i := range t.shards {
		s := &t.shards[i]
		im.Shards[i] = ShardImage{Count: s.count, Buckets: asBytes(s.buckets)}
	}
	im.Entries = t.entryBlocks()
	return im
}

func (t *Table) entryBlocks() [][]byte {
	var out [][]byte
	for at := uint64(0); at < uint64(t.limit); at += ImageRun {
		n := min(ImageRun, uint64(t.limit)-at)
		out = append(out, asBytes(t.chunks[at>>chunkShift][:n]))
	}
	return out
}

// Prepare makes an empty table ready to be filled from a snapshot and returns the memory
// to read it into: blocks for entries and, for each hash table, its buckets. Finish must
// be called after that. Each hash table has that number of buckets.
func (t *Table) Prepare(im *Image, buckets int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.reserve(uint64(im.Limit)); err != nil {
		return err
	}
	t.limit, t.count, t.bytes = im.Limit, im.Count, im.Bytes
	t.clock.Store(im.Clock)
	for _, r := range im.Spare {
		t.spare = append(t.spare, freeRange{r.Base, r.Slots})
	}
	im.Entries = t.entryBlocks()
	if buckets == 0 {
		return nil
	}
	r, err := newRegion(buckets)
	if err != nil {
		return err
	}
	t.region = r
	for i := range t.shards {
		s := &t.shards[i]
		s.buckets = r.shard(i)
		s.count = im.Shards[i].Count
		im.Shards[i].Buckets = asBytes(s.buckets)
	}
	return nil
}

// Finish ends the loading of entries from first up to end: pins of the process that wrote
// the snapshot mean nothing to this one.
func (t *Table) Finish(first, end Ref) {
	for ref := first; ref < end; ref++ {
		t.entry(ref).use &^= pinMask
	}
}

// CheckShard reports an error if a hash table refers to slots that are not there.
func (t *Table) CheckShard(i int) error {
	s := &t.shards[i]
	n := 0
	for b := range s.buckets {
		for slot, tag := range s.buckets[b].tags {
			if tag == 0 {
				continue
			}
			if ref := s.buckets[b].refs[slot]; ref >= t.limit {
				return fmt.Errorf("hash table %d refers to slot %d of %d", i, ref, t.limit)
			}
			n++
		}
	}
	if n != s.count {
		return fmt.Errorf("hash table %d has %d entries, not %d", i, n, s.count)
	}
	return nil
}

func asBytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// Limit is one past the last slot reference handed out.
func (t *Table) Limit() Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.limit
}
