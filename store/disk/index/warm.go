package index

import "github.com/kvconn/kvconn/store/hashtable"

// A record that is added needs its bucket, and while the table grows the entries of some thirty
// others, which are rarely in the processor's cache. They are read before the lock is taken, all
// together, so that the cache misses overlap. This helps and is not needed.

// warm reads what the insertion of records, whose hashes hash tells, will look at.
func (t *Table) warm(records int, hash func(int) uint64) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	t.warmBuckets(records, hash)
	if t.hashes.Next != nil {
		t.warmMoves(records * hashtable.MoveAhead)
	}
}

// warmBuckets reads the buckets where records belong. What it returns is of no use but to keep
// the compiler from leaving the reads out, as with warmMoves. It gets hashes, not identities: a
// copy of one makes the processor wait for the reads before it.
//
//go:noinline
func (t *Table) warmBuckets(records int, hash func(int) uint64) (read uint64) {
	for i := range records {
		r, at := t.home(hash(i))
		read ^= r.Buckets[at].FirstTags()
	}
	return read
}

// warmMoves reads the entries of the buckets that are moved next.
//
//go:noinline
func (t *Table) warmMoves(buckets int) (read uint64) {
	old := t.hashes.Region
	for at := t.hashes.Moved; at < min(t.hashes.Moved+buckets, len(old.Buckets)); at++ {
		b := &old.Buckets[at]
		for slot, tag := range b.Tags {
			if tag != 0 {
				e := t.entry(b.Refs[slot])
				read ^= uint64(e.key[0]) ^ uint64(e.shard) // which may be in the next cache line
			}
		}
	}
	return read
}
