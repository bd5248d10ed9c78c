package upload

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/store"
)

// A lane finds all of its records again, each once, whatever their parents are: forests, and chains
// that end in themselves.
func TestALaneGivesEachRecordOnce(t *testing.T) {
	r := seed.Random(t, 0)
	for range 300 {
		o := Options{ObjectBytes: int64(1+r.IntN(9)) * (headerBytes + store.BufferAlign)}
		o.EnsureDefaults()
		var q queue
		q.init(&o)
		keys, queued := 1+r.IntN(40), make(map[connector.Key]bool)
		for range 200 {
			l := q.lane(laneID{shard: connector.Shard(r.IntN(2))}, payloadBytes)
			switch it := (item{key: key(0, r.IntN(keys)), parent: key(0, r.IntN(keys)-1)}); r.IntN(6) {
			default:
				if l.id.shard == 0 {
					if _, flies := l.flying[it.key]; !flies {
						queued[it.key] = true
					}
				}
				if !q.add(l, it) {
					t.Fatal("no room")
				}
			case 0:
				if q.drop(store.RecordID{Shard: l.id.shard, Key: it.key}) && l.id.shard == 0 {
					if !queued[it.key] {
						t.Fatal("dropped one that was not there")
					}
					delete(queued, it.key)
				}
			case 1:
				taken := q.take(l)
				if len(taken.items) > l.perObject(o.ObjectBytes) || len(taken.items) == 0 && l.oldest != 0 {
					t.Fatalf("an object of %d records", len(taken.items))
				}
				for _, it := range taken.items {
					if l.id.shard == 0 && !queued[it.key] {
						t.Fatal("taken twice, or never queued")
					}
					if l.id.shard == 0 {
						delete(queued, it.key)
					}
				}
				q.landed(taken)
			}
			q.forget(l)
			checkQueue(t, &q, queued)
		}
	}
}

// checkQueue compares the first shard's lane with the keys that it must have, and all sums.
func checkQueue(t *testing.T, q *queue, queued map[connector.Key]bool) {
	t.Helper()
	records := 0
	for _, l := range q.lanes {
		n := 0
		for e := l.oldest; e != 0; e = q.entries[e].younger {
			if n++; q.entries[e].taken || l.byKey[q.entries[e].key] != e {
				t.Fatal("an entry is marked, or not found by its key")
			}
		}
		if n != len(l.byKey) || l.id.shard == 0 && n != len(queued) {
			t.Fatalf("%d entries by age, %d by key, want %d", n, len(l.byKey), len(queued))
		}
		for k := range queued {
			if l.id.shard == 0 && l.byKey[k] == 0 {
				t.Fatal("a record was lost")
			}
		}
		checkFamilies(t, q, l)
		records += n
	}
	if q.records != records || q.bytes != int64(records)*payloadBytes {
		t.Fatalf("the queue counts %d records and %d bytes, has %d", q.records, q.bytes, records)
	}
	if len(queued) > 0 && q.lanes[laneID{}] == nil {
		t.Fatal("a lane was lost")
	}
}

// checkFamilies checks that each entry is among the children of its parent, or the orphans of that.
func checkFamilies(t *testing.T, q *queue, l *lane) {
	t.Helper()
	seen := 0
	among := func(parent connector.Key, first uint32) {
		for e, prev := first, uint32(0); e != 0; e, prev = q.entries[e].next, e {
			if seen++; q.entries[e].parent != parent || q.entries[e].prev != prev {
				t.Fatal("an entry is among the children of another")
			}
		}
	}
	for parent, first := range l.orphans {
		if p := l.byKey[parent]; p != 0 && p != first {
			t.Fatal("a child is an orphan though its parent is there")
		}
		among(parent, first)
	}
	for k, e := range l.byKey {
		among(k, q.entries[e].child)
	}
	if seen != len(l.byKey) {
		t.Fatalf("%d of %d entries are in a family", seen, len(l.byKey))
	}
}

// Whatever happens in whatever sequence, all that the first tier has is in the bucket in the end, once,
// unless it was removed from there; and never are more objects in memory than may be.
func TestUploadsModel(t *testing.T) {
	for n := range 20 {
		synctest.Test(t, func(t *testing.T) {
			r := seed.Random(t, n)
			b := newBench(t, tiertest.Options{MaxRecords: 40 + r.IntN(400), KeepEvents: 5 + r.IntN(50)})
			b.options.Uploads = 1 + r.IntN(4)
			b.options.Throttled = func(error) bool { return true }
			b.start()
			lengths := make([]int, 10)
			for range 300 {
				b.step(r, lengths)
				b.to.set(func() {
					if b.to.most > b.o.Uploads {
						t.Errorf("%d objects at one time", b.to.most)
					}
				})
			}
			b.to.set(func() { b.to.fail, b.to.failOp, b.to.usage = nil, nil, store.Usage{} })
			b.to.letGo()
			b.OfferAll() // what could not be read or was removed meanwhile
			pass(10 * time.Minute)
			b.wantAll(lengths)
			b.end()
		})
	}
}

// step does something.
func (b *bench) step(r *rand.Rand, lengths []int) {
	switch r.IntN(12) {
	case 0:
		b.to.set(func() { b.to.fail = func([]*store.WriteOp) error { return store.ErrBusy } })
	case 1:
		b.to.set(func() {
			b.to.failOp = func(op *store.WriteOp) error {
				if op.ID.Key[4]%3 == 0 {
					return store.ErrIO
				}
				return nil
			}
		})
	case 2:
		b.to.set(func() { b.to.hold = true })
	case 3, 4:
		b.to.set(func() { b.to.fail, b.to.failOp = nil, nil })
		b.to.letGo()
	case 5:
		b.to.set(func() { b.to.takes = time.Duration(r.IntN(5)) * time.Second })
	case 6:
		b.to.set(func() { b.to.usage = store.Usage{MaxBytes: 1, UsedBytes: r.Int64N(2)} })
	case 7:
		pass(time.Duration(r.IntN(90)) * time.Second)
	default:
		chain := r.IntN(len(lengths))
		n := r.IntN(30)
		b.save(chain, lengths[chain], lengths[chain]+n)
		lengths[chain] += n
		pass(time.Duration(r.IntN(3)) * time.Second)
	}
}

// wantAll checks that the bucket has all, once, and parents before their children.
func (b *bench) wantAll(lengths []int) {
	b.t.Helper()
	b.to.mu.Lock()
	defer b.to.mu.Unlock()
	for chain, n := range lengths {
		at := make([]bool, n)
		b.from.Present(b.ns, 0, chainOf(chain, 0, n), at)
		for i := range n {
			if at[i] && !b.to.have[b.record(b.ns, 0, chain, i).ID] {
				b.t.Fatalf("block %d of chain %d is not in the bucket: %+v", i, chain, b.Stats())
			}
		}
	}
	once := make(map[store.RecordID]bool)
	for _, o := range b.to.objects {
		after := make(map[connector.Key]bool) // parents of records that came already
		for _, rec := range o {
			if once[rec.ID] {
				b.t.Fatalf("%v was uploaded twice", rec.ID.Key)
			}
			if after[rec.ID.Key] {
				b.t.Fatalf("%v comes after its child", rec.ID.Key)
			}
			once[rec.ID], after[rec.Parent] = true, true
		}
	}
}
