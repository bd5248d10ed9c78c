package index

import (
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/hashtable"
)

// TestRemovedRecordIsNotFoundBesideOneOfItsTag: the match of a tag of 1 carries over into an empty
// slot after it, which still named the record that was removed.
func TestRemovedRecordIsNotFoundBesideOneOfItsTag(t *testing.T) {
	for tag := uint8(1); tag < 4; tag++ {
		for slots := 2; slots <= hashtable.BucketSlots; slots++ {
			testRemovedBesideItsTag(t, tag, slots)
		}
	}
}

// testRemovedBesideItsTag fills slots of one bucket with records of one tag.
func testRemovedBesideItsTag(t *testing.T, tag uint8, slots int) {
	t.Helper()
	table := New()
	defer table.Close()
	base, err := table.AddSlots(uint32(slots) + 1)
	if err != nil {
		t.Fatal(err)
	}
	g := rand.NewPCG(uint64(tag), uint64(slots))
	wanted := hashtable.Region{Buckets: make([]hashtable.Bucket, hashtable.MinBuckets)}
	var keys []connector.Key
	for len(keys) < slots {
		k := randomKey(g)
		if h := (&ID{Key: k}).hash(); hashtable.TagOf(h) == tag && wanted.Home(h) == 7 {
			keys = append(keys, k)
			n := len(keys) - 1
			table.Insert([]Insertion{{ID: ID{Key: k}, Ref: base + Ref(n), Seq: uint64(n) + 1, Bytes: 1}})
		}
	}
	last := ID{Key: keys[slots-1]}
	if _, ok := table.Remove(base+Ref(slots-1), uint64(slots)); !ok || table.Has(last) {
		t.Fatalf("tag %d: record %d was removed (%v) and is found", tag, slots-1, ok)
	}
	again := []Insertion{{ID: last, Ref: base + Ref(slots), Seq: uint64(slots) + 1, Bytes: 1}}
	if table.Insert(again); !again[0].Added || !table.Has(last) || table.Len() != slots {
		t.Fatalf("tag %d: record %d is not added again: %+v", tag, slots-1, again[0])
	}
}

// Has reports whether a record is there, without any effect.
func (t *Table) Has(id ID) bool {
	_, ok := t.Get(id, false)
	return ok
}
