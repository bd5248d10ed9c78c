package prefix

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Engines whose names are numbers of their own say equal names of different blocks. One must never place
// its blocks behind the other's.
func TestEqualNamesOfDifferentBlocksDoNotMix(t *testing.T) {
	rng := rand.New(rand.NewPCG(8, 8))
	p, q := randomPrompt(rng, 20), randomPrompt(rng, 20)
	for i := range p.ids {
		p.ids[i], q.ids[i] = uint64(i), uint64(i)
	}
	x := newIndex(t)
	a, b := mustAdd(t, x, GPU, "e"), mustAdd(t, x, GPU, "e")
	p.report(t, x, a, 0, 10, 10)
	q.report(t, x, b, 0, 10, 10)
	x.check(t)
	if s, _ := x.Holder(b); !s.OwnNames {
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
