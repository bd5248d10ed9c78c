package index

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/docs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// TestChoiceOfVictimsLooksAtAFewGroups is defect 28: a choice looked at every entry, even of
// other classes.
func TestChoiceOfVictimsLooksAtAFewGroups(t *testing.T) {
	const n = 200_000
	table, chains := fill(t, n, 50)
	g := seed.Random(t, 0)
	order := g.Perm(len(chains))
	for _, c := range order {
		_, pins := table.Prefix(0, oneShard, chains[c], nil)
		table.Unpin(pins...)
	}
	used := make(map[connector.Key]int) // how late
	for at, c := range order {
		for _, k := range chains[c] {
			used[k] = at
		}
	}
	late, evicted := 0, 0
	for range 100 {
		if looked := groupsLookedThrough(t, table); looked > choiceGroups {
			t.Fatalf("a choice looked through %d groups", looked)
		}
		for _, r := range table.Evict(1, table.Chosen(1), nil) {
			evicted++
			late += used[r.ID.Key]
		}
	}
	// Every bound was out of date, so that the choice is not exact: it is to be near.
	const near = 0.02
	mean := float64(late) / float64(evicted) / float64(len(chains))
	t.Logf("%d victims, on average at %.4f of the order of use", evicted, mean)
	if evicted < 100 || mean < near/2 || mean > near*3/2 {
		t.Errorf("%d victims are on average at %.4f of the order of use", evicted, mean)
	}
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("on average at %.2f of the order of use", near))
}

// groupsLookedThrough chooses victims and returns how many groups got another bound.
func groupsLookedThrough(t *testing.T, table *Table) (looked int) {
	t.Helper()
	bounds := func() (out []uint64) {
		for ref := Ref(0); ref < table.limit; ref += groupSlots {
			if p := table.cold.place(ref); p != nil && p.class > 0 {
				out = append(out, table.cold.byNumber[p.class-1].bounds.Bound(p.leaf))
			}
		}
		return out
	}
	before := bounds()
	if _, ok := table.Choose(1); !ok {
		t.Fatal("nothing chosen")
	}
	for i, b := range bounds() {
		if b != before[i] {
			looked++
		}
	}
	return looked
}

// TestPinnedGroupsAreLookedThroughOnce: what cannot go costs one choice more work, and not the
// next ones.
func TestPinnedGroupsAreLookedThroughOnce(t *testing.T) {
	const pinned = 500 * groupSlots
	table, chains := fill(t, 2*pinned, groupSlots)
	for _, chain := range chains[:pinned/groupSlots] {
		for _, k := range chain {
			table.Get(ID{Key: k}, true) // no use
		}
	}
	if looked := groupsLookedThrough(t, table); looked < pinned/groupSlots || looked > pinned/groupSlots+choiceGroups {
		t.Errorf("the first choice looked through %d groups, %d of them pinned", looked, pinned/groupSlots)
	}
	for range 20 {
		table.Evict(1, table.Chosen(1), nil)
		if looked := groupsLookedThrough(t, table); looked > choiceGroups {
			t.Fatalf("a later choice looked through %d groups", looked)
		}
	}
}

func TestChoiceAllocatesNothing(t *testing.T) {
	table, chains := fill(t, 100_000, 50)
	for _, c := range seed.Random(t, 0).Perm(len(chains)) {
		_, pins := table.Prefix(0, oneShard, chains[c], nil)
		table.Unpin(pins...)
	}
	out := make([]Removed, 0, 1000)
	choose := func() {
		table.Choose(1)
		out = table.Evict(1, table.Chosen(1), out[:0])
	}
	for range 100 {
		choose()
	}
	if n := testing.AllocsPerRun(100, choose); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(out) == 0 {
		t.Error("nothing was evicted")
	}
}

// TestVictimsAreExactlyTheLeastRecentlyUsed compares with a sort of all records, where no more
// groups changed than a choice looks through.
func TestVictimsAreExactlyTheLeastRecentlyUsed(t *testing.T) {
	g := seed.Random(t, 0)
	table, chains := fill(t, choiceGroups*groupSlots, 32)
	for range 5000 {
		c := chains[g.IntN(len(chains))]
		_, pins := table.Prefix(0, oneShard, c[:1+g.IntN(len(c))], nil)
		table.Unpin(pins...)
		if g.IntN(20) > 0 {
			continue
		}
		orders := make(map[Ref]uint64)
		var all []uint64
		for ref := range table.limit {
			if e := table.entry(ref); e.seq != 0 {
				orders[ref] = table.order(e)
				all = append(all, orders[ref])
			}
		}
		if len(all) == 0 {
			return
		}
		slices.Sort(all)
		if g.IntN(3) == 0 {
			table.Choose(1)
			table.Forget(1)
		}
		n := 1 + g.IntN(10)
		for i, r := range evictAll(table, n) {
			if orders[r.Ref] != all[i] {
				t.Fatalf("victim %d of %d: order %x, want %x", i, n, orders[r.Ref], all[i])
			}
		}
	}
}
