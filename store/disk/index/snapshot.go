package index

import (
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/hashtable"
)

// Image is the table as blocks of bytes, for a snapshot. The blocks alias the table's
// memory; the table must not change while they are in use.
type Image struct {
	Limit   Ref
	Clock   uint64
	Count   int
	Bytes   int64
	Spare   []Range
	Buckets int // of the hash table
	Wrapped int // of these, those that may hold what belongs at the end
	// Tenants are those of the numbers in Owners, which has one for each slot, in runs as Entries; without tenants it has none.
	Tenants []tenants.Saved
	Owners  [][]byte
	// Entries are the entries of slots 0 to Limit in runs of at most ImageRun slots, Hash
	// the buckets in runs of at most HashRun.
	Entries, Hash [][]byte
}

// ImageRun is the number of slots in a block of entries, HashRun that of buckets in a
// block of the hash table. EntryBytes is the size of an entry, MaxBuckets bounds a hash table:
// the 32 bits of slot references need fewer.
const (
	ImageRun   = chunkEntries
	HashRun    = hashtable.RunBuckets
	EntryBytes = entryBytes
	MaxBuckets = 1 << 30
)

// Image returns the table's memory.
func (t *Table) Image() Image {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hashes.MoveAll(t.hashAt)
	im := Image{Limit: t.limit, Clock: t.clock.Load(), Count: t.count, Bytes: t.bytes, Spare: slices.Clone(t.spare)}
	if !t.hashes.Blank() {
		im.Buckets, im.Wrapped, im.Hash = len(t.hashes.Region.Buckets), t.hashes.Region.Wraps(), t.hashes.Region.Blocks()
	}
	im.Entries, im.Tenants, im.Owners = t.entryBlocks(), t.tenants.Save(), t.tenants.Blocks(uint32(im.Limit))
	return im
}

func (t *Table) entryBlocks() [][]byte {
	var out [][]byte
	for at := uint64(0); at < uint64(t.limit); at += ImageRun {
		n := min(ImageRun, uint64(t.limit)-at)
		out = append(out, hashtable.AsBytes(t.chunks[at>>chunkShift][:n]))
	}
	return out
}

// Prepare makes an empty table ready to be filled from a snapshot and sets Entries and Hash to
// the memory to read it into. Finish must be called for all entries after that, CheckHash
// for all blocks of the hash table, and [Table.Survey] for all ranges that are tracked.
func (t *Table) Prepare(im *Image) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if im.Buckets > MaxBuckets || im.Buckets*hashtable.BucketSlots < im.Count {
		return fmt.Errorf("a hash table of %d buckets for %d records", im.Buckets, im.Count)
	}
	if err := t.reserve(uint64(im.Limit)); err != nil {
		return err
	}
	t.limit, t.count, t.bytes = im.Limit, im.Count, im.Bytes
	t.clock.Store(max(im.Clock, clockStart))
	t.spare = slices.Clone(im.Spare)
	if err := t.tenants.Restore(im.Tenants); err != nil {
		return err
	}
	im.Entries, im.Owners = t.entryBlocks(), t.tenants.Blocks(uint32(im.Limit))
	if im.Buckets == 0 {
		return nil
	}
	r, err := hashtable.NewRegion(im.Buckets)
	if err != nil {
		return err
	}
	r.SetWraps(im.Wrapped)
	t.hashes.Region, im.Hash = r, r.Blocks()
	return nil
}

// Finish ends the loading of entries from first up to end: pins of the process that wrote
// the snapshot mean nothing to this one.
func (t *Table) Finish(first, end Ref) {
	for ref := first; ref < end; ref++ {
		e := t.entry(ref)
		e.use = recency.At(e.tick(), 0)
	}
}

// CheckHash returns the number of records in a block of the hash table, or an error if it
// refers to slots that are not there.
func (t *Table) CheckHash(block int) (records int, err error) {
	from := block * HashRun
	for b := range t.hashes.Region.Buckets[from:min(from+HashRun, len(t.hashes.Region.Buckets))] {
		bucket := &t.hashes.Region.Buckets[from+b]
		for slot, tag := range bucket.Tags {
			if tag == 0 {
				continue
			}
			if ref := bucket.Refs[slot]; ref >= t.limit {
				return 0, fmt.Errorf("bucket %d refers to slot %d of %d", from+b, ref, t.limit)
			}
			records++
		}
	}
	return records, nil
}

// Limit is one past the last slot reference handed out.
func (t *Table) Limit() Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.limit
}
