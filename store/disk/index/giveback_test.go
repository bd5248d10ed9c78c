package index

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/hashtable"
)

const smallGive = 4096 // 64 buckets

// TestMemoryIsGivenBackWhileOthersInsertAndLook inserts from two goroutines. Both give
// memory back between their insertions.
func TestMemoryIsGivenBackWhileOthersInsertAndLook(t *testing.T) {
	const each, batch = 60_000, 100
	table := New()
	defer table.Close()
	table.hashes.GiveBytes = smallGive
	base, err := table.AddSlots(2 * each)
	if err != nil {
		t.Fatal(err)
	}
	var done [2]atomic.Int64
	var all [2][]connector.Key
	var inserters sync.WaitGroup
	for i := range all {
		g := rand.NewPCG(uint64(i), 9)
		for range each {
			all[i] = append(all[i], randomKey(g))
		}
		inserters.Go(func() {
			in := make([]Insertion, batch)
			for at := 0; at < each; at += batch {
				for k := range in {
					slot := i*each + at + k
					in[k] = Insertion{ID: ID{Key: all[i][at+k]}, Ref: base + Ref(slot), Seq: uint64(slot) + 1, Bytes: 1}
				}
				table.Insert(in)
				done[i].Store(int64(at + batch))
			}
		})
	}
	g := seed.Random(t, 0)
	for at := int64(0); at < each; {
		for i := range all {
			if at = done[i].Load(); at == 0 {
				continue
			}
			slot := g.Int64N(at)
			if f, ok := table.Get(ID{Key: all[i][slot]}, false); !ok || f.Ref != base+Ref(int64(i)*each+slot) {
				t.Fatalf("record %d of %d: %+v %v", slot, at, f, ok)
			}
		}
	}
	inserters.Wait()
	for i := range all {
		if n, _ := table.Prefix(0, oneShard, all[i], nil); n != each {
			t.Fatalf("%d of %d records found", n, each)
		}
	}
}

// TestRecordsThatWrapIntoMemoryGivenBackAreKept overfills the last bucket, so that its records wrap
// to the beginning, past what was moved and given back.
func TestRecordsThatWrapIntoMemoryGivenBackAreKept(t *testing.T) {
	table := New()
	defer table.Close()
	table.hashes.GiveBytes = smallGive
	base, err := table.AddSlots(1 << 17)
	if err != nil {
		t.Fatal(err)
	}
	g := rand.NewPCG(seed.Random(t, 0).Uint64(), 1)
	var keys []connector.Key
	add := func(k connector.Key) {
		n := len(keys)
		table.Insert([]Insertion{{ID: ID{Key: k}, Ref: base + Ref(n), Seq: uint64(n) + 1, Bytes: 1}})
		keys = append(keys, k)
	}
	for !table.Growing() || len(table.hashes.Region.Buckets) < 4000 || table.hashes.Region.GivenBytes() < 2*smallGive {
		add(randomKey(g))
	}
	old, given := table.hashes.Region, table.hashes.Region.GivenBytes()
	for old.Wraps()*hashtable.BucketBytes <= given+smallGive {
		k := randomKey(g)
		for id := (ID{Key: k}); old.Home(id.hash()) != len(old.Buckets)-1; id.Key = k {
			k = randomKey(g)
		}
		add(k)
	}
	if table.hashes.Region != old {
		t.Fatal("the growth ended meanwhile: nothing was tested")
	}
	check := func() {
		t.Helper()
		if n, pins := table.Prefix(0, oneShard, keys, nil); n != len(keys) {
			t.Fatalf("%d of %d records found", n, len(keys))
		} else {
			table.Unpin(pins...)
		}
	}
	check()
	for table.hashes.Region == old {
		add(randomKey(g))
	}
	check()
}

// TestFrontIsKeptForWhatWraps: the first record that wrapped took the system's milliseconds to
// give a page, under the lock.
func TestFrontIsKeptForWhatWraps(t *testing.T) {
	table := New()
	defer table.Close()
	table.hashes.GiveBytes = smallGive
	base, err := table.AddSlots(1 << 17)
	if err != nil {
		t.Fatal(err)
	}
	g := rand.NewPCG(1, 1) // nothing wraps before something is given back
	gave := false
	for n := range Ref(100_000) {
		table.insertRun([]Insertion{{ID: ID{Key: randomKey(g)}, Ref: base + n, Seq: uint64(n) + 1, Bytes: 1}}, 1)
		part, r := table.hashes.EmptiedPart()
		if r == nil {
			continue
		}
		r.GiveBack(part)
		if at := r.Bytes() - cap(part); len(part) > 0 && at < smallGive {
			t.Fatalf("the memory from byte %d on is given back", at)
		}
		gave = gave || len(part) > 0
	}
	if !gave {
		t.Error("nothing was given back")
	}
}
