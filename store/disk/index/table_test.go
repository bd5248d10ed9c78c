package index

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/property"
)

func randomKey(g *rand.PCG) (k connector.Key) {
	binary.LittleEndian.PutUint64(k[:], g.Uint64())
	binary.LittleEndian.PutUint64(k[8:], g.Uint64())
	return k
}

func fill(t testing.TB, n, chain int) (*Table, [][]connector.Key) {
	table := New()
	t.Cleanup(table.Close)
	base, err := table.AddSlots(uint32(n))
	if err != nil {
		t.Fatal(err)
	}
	table.Track(1, Range{Base: base, Slots: uint32(n)}, 0)
	g := rand.NewPCG(1, 2)
	var chains [][]connector.Key
	batch := make([]Insertion, 0, 256)
	for i := range n {
		if i%chain == 0 {
			chains = append(chains, nil)
		}
		c := &chains[len(chains)-1]
		in := Insertion{ID: ID{Key: randomKey(g)}, Ref: base + Ref(i), Seq: uint64(i + 1), Bytes: 1}
		if k := len(*c); k > 0 {
			in.Parent = (*c)[k-1]
		}
		*c = append(*c, in.ID.Key)
		if batch = append(batch, in); len(batch) == cap(batch) || i == n-1 {
			table.Insert(batch)
			batch = batch[:0]
		}
	}
	return table, chains
}

// TestTableBehavesLikeAMap drives a table and a map with the same operations.
func TestTableBehavesLikeAMap(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		table := New()
		defer table.Close()
		const slots = 200
		base, err := table.AddSlots(slots)
		if err != nil {
			t.Fatal(err)
		}
		model := make(map[byte]Found)
		var free []Ref
		for i := range slots {
			free = append(free, base+Ref(i))
		}
		seq := uint64(0)
		id := func(k byte) ID {
			return ID{Namespace: uint16(k % 3), Shard: connector.Shard(k % 2), Key: connector.Key{k}}
		}
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			k := rapid.Byte().Draw(t, "key")
			got, ok := table.Get(id(k), false)
			want, in := model[k]
			if ok != in || got != want {
				t.Fatalf("get %d: %v %v, want %v %v", k, got, ok, want, in)
			}
			switch {
			case in:
				if _, ok := table.Remove(want.Ref, want.Seq); !ok {
					t.Fatalf("remove %d failed", k)
				}
				delete(model, k)
				free = append(free, want.Ref)
			case len(free) > 0:
				seq++
				ref := free[len(free)-1]
				free = free[:len(free)-1]
				table.Insert([]Insertion{{ID: id(k), Ref: ref, Seq: seq, Bytes: uint32(k) + 1}})
				model[k] = Found{Ref: ref, Seq: seq, Bytes: uint32(k) + 1}
			}
		}
		if table.Len() != len(model) {
			t.Fatalf("%d records, want %d", table.Len(), len(model))
		}
	})
}

func TestRecordNeedsUnder60Bytes(t *testing.T) {
	for _, n := range []int{50_000, 70_000, 100_000, 131_072} {
		table, _ := fill(t, n, 1000)
		fixed := New().MemoryBytes()
		if per := float64(table.MemoryBytes()-fixed) / float64(n); per > 60 {
			t.Errorf("%d records: %.1f bytes each", n, per)
		}
	}
}

// evictAll evicts up to want records of class 1, choosing as often as is needed.
func evictAll(table *Table, want int) (out []Removed) {
	for len(out) < want {
		if table.Chosen(1) == 0 {
			if _, ok := table.Choose(1); !ok {
				break
			}
		}
		out = table.Evict(1, want-len(out), out)
	}
	return out
}

func TestVictimsGoInOrderOfUseAndChildrenFirst(t *testing.T) {
	table, chains := fill(t, 1000, 100)
	table.Prefix(0, []connector.Shard{0}, chains[3], nil) // pinned
	left := []int{100, 100, 100, 100, 100, 100, 100, 100, 100, 100}
	out := evictAll(table, 2000)
	if len(out) != 900 {
		t.Errorf("%d evicted, want all but the chain in use", len(out))
	}
	for i, r := range out {
		c := slices.IndexFunc(chains, func(chain []connector.Key) bool { return slices.Contains(chain, r.ID.Key) })
		if left[c]--; r.ID.Key != chains[c][left[c]] {
			t.Fatalf("victim %d is not the end of its chain", i)
		}
	}
}

func TestLookupTouchMakesAChosenVictimStay(t *testing.T) {
	table, chains := fill(t, 300, 100)
	if first, ok := table.Choose(1); !ok || table.Chosen(1) == 0 || first.Seq == 0 {
		t.Fatal("nothing chosen")
	}
	_, refs := table.Prefix(0, []connector.Shard{0}, chains[0], nil)
	table.Unpin(refs...)
	for _, r := range evictAll(table, 200) {
		if slices.Contains(chains[0], r.ID.Key) {
			t.Fatal("a record used since it was chosen was evicted")
		}
	}
}

// BenchmarkLookup is the lookup of a chain of 8,192 keys in 5 million records (in a
// million with -short). min-ns is the best of all lookups, what a quiet machine shows.
func BenchmarkLookup(b *testing.B) {
	n := 5_000_000
	if testing.Short() {
		n = 1_000_000
	}
	table, chains := fill(b, n, 8192)
	chains = chains[:n/8192]
	shards := []connector.Shard{0}
	var refs []Ref
	var times []time.Duration
	i := 0
	for b.Loop() {
		chain := chains[i*7919%len(chains)]
		i++
		began := time.Now()
		var found int
		found, refs = table.Prefix(0, shards, chain, refs[:0])
		times = append(times, time.Since(began))
		if found != len(chain) {
			b.Fatal(found)
		}
		table.Unpin(refs...)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[0].Nanoseconds()), "min-ns")
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "median-ns")
}
