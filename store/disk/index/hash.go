package index

import (
	"math/bits"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
)

func (id *ID) hash() uint64 { return hashOf(id.Namespace, id.Shard, &id.Key) }

func hashOf(namespace uint16, shard connector.Shard, key *connector.Key) uint64 {
	return hashtable.Hash((*[16]byte)(key), uint64(namespace)<<16|uint64(shard))
}

func (e *entry) hash() uint64 { return hashOf(e.namespace, e.shard, &e.key) }

func (t *Table) hashAt(r Ref) uint64 { return t.entry(r).hash() }

// home returns the region that holds the records of a hash, and their bucket there.
func (t *Table) home(h uint64) (r *hashtable.Region, at int) {
	r = t.hashes.Region
	at = r.Home(h)
	if at < t.hashes.Moved {
		r = t.hashes.Next
		at = r.Home(h)
	}
	return r, at
}

// position finds id and returns where it is, or false.
func (t *Table) position(h uint64, id *ID) (r *hashtable.Region, at, slot int, ok bool) {
	tag := hashtable.TagOf(h)
	r, at = t.home(h)
	for range r.Buckets {
		b := &r.Buckets[at]
		first, second := b.Matches(tag)
		for ; first != 0; first &= first - 1 {
			if slot = bits.TrailingZeros64(first) / 8; b.Tags[slot] == tag && t.entry(b.Refs[slot]).is(id) {
				return r, at, slot, true
			}
		}
		for ; second != 0; second &= second - 1 {
			if slot = 8 + bits.TrailingZeros64(second)/8; b.Tags[slot] == tag && t.entry(b.Refs[slot]).is(id) {
				return r, at, slot, true
			}
		}
		if b.Passed == 0 {
			break
		}
		at = r.After(at)
	}
	return nil, 0, 0, false
}

// findHash returns the slot of the record whose identity has that hash, the lowest bit
// aside, or NoRef.
func (t *Table) findHash(h uint64) Ref {
	tag := hashtable.TagOf(h)
	r, at := t.home(h)
	for range r.Buckets {
		b := &r.Buckets[at]
		for slot, other := range b.Tags {
			if other == tag && t.entry(b.Refs[slot]).hash()>>1 == h>>1 {
				return b.Refs[slot]
			}
		}
		if b.Passed == 0 {
			break
		}
		at = r.After(at)
	}
	return NoRef
}

// find returns the slot of a record, or NoRef.
func (t *Table) find(id *ID) Ref {
	if r, at, slot, ok := t.position(id.hash(), id); ok {
		return r.Buckets[at].Refs[slot]
	}
	return NoRef
}

// put adds a reference whose identity is not in the table.
func (t *Table) put(h uint64, ref Ref) {
	t.hashes.MakeRoom(t.count, t.hashAt)
	r, at := t.home(h)
	r.Place(at, h, ref)
}

// cut removes the reference of a record that is in the table. No tombstone stays.
func (t *Table) cut(id *ID) Ref {
	h := id.hash()
	r, at, slot, ok := t.position(h, id)
	if !ok {
		panic("index: an entry is not in the table that it belongs to")
	}
	r.Take(r.Home(h), at, slot)
	return r.Buckets[at].Refs[slot]
}
