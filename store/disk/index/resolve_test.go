package index

import (
	"math/rand/v2"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// chained are records of chains, some of which share a head, in the order of writing.
func chained(g *rand.Rand, n int) (all []Loaded, depth map[connector.Key]int) {
	depth = make(map[connector.Key]int)
	src := rand.NewPCG(g.Uint64(), g.Uint64())
	for i := range n {
		in := Loaded{ID: ID{Namespace: 1, Shard: 2, Key: randomKey(src)}, Seq: uint64(i + 1), Bytes: 1, Parent: NoRef}
		if i > 0 && g.IntN(100) > 0 {
			// Most often the end of the last chain, now and then the middle of another.
			parent := all[i-1]
			if g.IntN(50) == 0 {
				parent = all[g.IntN(i)]
			}
			in.ParentKey = parent.ID.Key
			depth[in.ID.Key] = depth[parent.ID.Key] + 1
		}
		all = append(all, in)
	}
	for i, slot := range g.Perm(n) {
		all[i].Ref = Ref(slot)
	}
	return all, depth
}

// checkChains fails unless every record has its parent and its depth, and no parent is older
// than a child.
func checkChains(t *testing.T, table *Table, all []Loaded, depth map[connector.Key]int) {
	t.Helper()
	for i := range all {
		in := &all[i]
		e := table.entry(in.Ref)
		if e.seq != in.Seq || int(e.depth) != depth[in.ID.Key] || e.flags != 0 {
			t.Fatalf("record %d: depth %d, flags %x, want depth %d", i, e.depth, e.flags, depth[in.ID.Key])
		}
		p := table.validParent(e)
		if (p != NoRef) != (in.ParentKey != connector.Key{}) {
			t.Fatalf("record %d: parent %d of key %v", i, p, in.ParentKey)
		}
		if p != NoRef && (table.entry(p).key != in.ParentKey || table.entry(p).tick() < e.tick()) {
			t.Fatalf("record %d: its parent is another, or older", i)
		}
	}
}

func TestRecordsLoadedInAnyOrderFindTheirParentsByKey(t *testing.T) {
	g := seed.Random(t, 0)
	const n = 5000
	all, depth := chained(g, n)
	table := New()
	defer table.Close()
	if _, err := table.AddSlots(n); err != nil {
		t.Fatal(err)
	}
	g.Shuffle(n, func(i, k int) { all[i], all[k] = all[k], all[i] })
	for i := 0; i < n; i += 100 {
		if lost := table.Load(all[i:i+100], nil); len(lost) > 0 {
			t.Fatal(lost)
		}
	}
	done := make(chan struct{})
	for i := range 5 {
		go func() {
			table.Resolve(Range{Base: Ref(i * n / 5), Slots: n / 5})
			done <- struct{}{}
		}()
	}
	for range 5 {
		<-done
	}
	checkChains(t, table, all, depth)
}
