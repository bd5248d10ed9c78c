package prefix

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// Engines whose names are numbers of their own say equal names of different blocks. One must never place
// its blocks after the other's.
func TestEqualNamesOfDifferentBlocksDoNotMix(t *testing.T) {
	rng := seed.Random(t, 8)
	p, q := randomPrompt(rng, 20), randomPrompt(rng, 20)
	for i := range p.ids {
		p.ids[i], q.ids[i] = uint64(i), uint64(i)
	}
	x := newIndex(t)
	a, b := mustAdd(t, x, "e"), mustAdd(t, x, "e")
	p.report(t, x, a, 0, 10, 10)
	q.report(t, x, b, 0, 10, 10)
	x.check(t)
	if x.holder(b).own == nil {
		t.Error("the second engine has no names of its own")
	}
	for i := range 10 {
		if k, ok := x.ParentKey(a, uint64(i)); !ok || k != p.keys[i] {
			t.Fatalf("name %d of the first leads to %v", i, k)
		}
		if k, ok := x.ParentKey(b, uint64(i)); !ok || k != q.keys[i] {
			t.Fatalf("name %d of the second leads to %v", i, k)
		}
	}
	p.report(t, x, a, 10, 20, 10)
	// The first engine's name is unknown to the second, which never said it.
	if k, ok := x.ParentKey(b, 15); ok {
		t.Errorf("a name that the second never said leads to %v", k)
	}
	if err := x.Stored(b, 15, true, []uint64{99}, q.keys[10:11]); !errors.Is(err, ErrUnknownParent) {
		t.Errorf("%v", err)
	}
	if n := x.Removed(b, []uint64{12}); n != 1 {
		t.Error("a block that it never had was removed")
	}
	// Nor does it stand for a block that both have.
	x.Removed(b, []uint64{3})
	p.ids[0] = 77
	if err := x.Stored(b, 0, false, []uint64{77}, p.keys[:1]); err != nil {
		t.Fatal(err)
	}
	if n := x.Removed(b, []uint64{0, 77}); n != 0 {
		t.Errorf("%d unknown", n)
	}
	view, err := NewRanks([]Rank{{GPU: a, HasGPU: true}, {GPU: b, HasGPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Result, 2)
	if x.Walk(view, p.keys, out); out[0].GPU != 20 || out[1].GPU != 0 {
		t.Errorf("%+v", out)
	}
	if x.Walk(view, q.keys, out); out[0].GPU != 0 || out[1].GPU != 0 {
		t.Errorf("%+v", out)
	}
	x.check(t)
	x.Clear(a)
	x.Clear(b)
	if x.check(t); x.Stats().Blocks != 0 {
		t.Errorf("%+v", x.Stats())
	}
}

// Domains are named by people, models too: no name makes an engine's names those of the stores.
func TestAnEngineOfAnyDomainKeepsItsNames(t *testing.T) {
	p := randomPrompt(seed.Random(t, 9), 10)
	for _, domain := range []string{"", "kvconn", "KeyDomain", "gpu"} {
		x := newIndex(t)
		h := mustAdd(t, x, domain)
		p.report(t, x, h, 0, 10, 5)
		if n := x.Removed(h, p.ids); n != 0 || x.Stats().Blocks != 0 {
			t.Errorf("domain %q: %d of its names are unknown", domain, n)
		}
		x.check(t)
	}
}

// Engines that give a handful of names to everything, again and again: whatever becomes of it, nobody is
// said to have a block that it never reported, and the index stays whole.
func TestReusedNamesInventNothing(t *testing.T) {
	rng := seed.Random(t, 10)
	tree := randomTree(rng, 60)
	x := newIndex(t)
	holders := []Holder{mustAdd(t, x, "e"), mustAdd(t, x, "e"), mustAdd(t, x, "alone")}
	view, err := NewRanks([]Rank{{GPU: holders[0], HasGPU: true}, {GPU: holders[1], HasGPU: true}, {GPU: holders[2], HasGPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	stored := make([]map[int]bool, len(holders))
	out := make([]Result, len(holders))
	for step := range 4000 {
		i := rng.IntN(len(holders))
		b := tree[rng.IntN(len(tree))]
		switch rng.IntN(20) {
		default:
			from, parent := 0, uint64(0)
			if len(b.path) > 1 && rng.IntN(2) == 0 { // after a block that the holder can name
				at := 1 + rng.IntN(len(b.path)-1)
				for name := range uint64(12) {
					if k, ok := x.ParentKey(holders[i], name); ok && k == b.keys[at-1] {
						from, parent = at, name
					}
				}
			}
			ids := make([]uint64, len(b.path)-from)
			for k := range ids {
				ids[k] = rng.Uint64N(12)
			}
			if err := x.Stored(holders[i], parent, from > 0, ids, b.keys[from:]); err != nil {
				t.Fatal(err)
			}
			if stored[i] == nil {
				stored[i] = make(map[int]bool)
			}
			for _, n := range b.path[from:] {
				stored[i][n] = true
			}
		case 0, 1, 2, 3, 4, 5:
			x.Removed(holders[i], []uint64{rng.Uint64N(12), rng.Uint64N(12), rng.Uint64N(12)})
		case 6:
			x.Clear(holders[i])
			stored[i] = nil
		}
		x.Walk(view, b.keys, out)
		for i, r := range out {
			for _, n := range b.path[:r.GPU] {
				if !stored[i][n] {
					t.Fatalf("step %d: holder %d never reported block %d", step, i, n)
				}
			}
		}
		if step%20 == 0 {
			x.check(t)
		}
	}
	for _, h := range holders {
		x.Clear(h)
	}
	if x.check(t); x.Stats().Blocks != 0 {
		t.Errorf("%+v", x.Stats())
	}
}

// An engine that tells equal blocks apart by more than its events show gives a block a name, and then another one. Only the
// last one removes it, so only that one's copy counts.
func TestABlockGoesWithItsLastName(t *testing.T) {
	p := randomPrompt(seed.Random(t, 11), 3)
	for _, alone := range []bool{true, false} {
		x := newIndex(t)
		h := mustAdd(t, x, "e")
		if !alone {
			p.report(t, x, mustAdd(t, x, "e"), 0, 3, 3)
		}
		p.report(t, x, h, 0, 3, 3)
		for _, name := range []uint64{77, 78, 78} {
			if err := x.Stored(h, p.ids[0], true, []uint64{name}, p.keys[1:2]); err != nil {
				t.Fatal(err)
			}
			x.check(t)
		}
		for i, left := range []int64{3, 2} { // it was stored as 78 twice
			if n := x.Removed(h, []uint64{78}); n != 0 || x.HolderBlocks(h) != left {
				t.Errorf("alone %v, removal %d: %d unknown, %d blocks", alone, i, n, x.HolderBlocks(h))
			}
		}
		if n := x.Removed(h, []uint64{77, p.ids[1]}); n != 2 || x.HolderBlocks(h) != 2 {
			t.Errorf("alone %v: %d unknown, %d blocks", alone, n, x.HolderBlocks(h))
		}
		x.check(t)
	}
}
