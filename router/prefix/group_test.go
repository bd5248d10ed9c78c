package prefix

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func TestGroupsFollowHoldersThatMoveTogether(t *testing.T) {
	const n = 40
	w := newWorkers(t, n)
	want := make([]int32, n)
	at := 0
	for _, next := range []int{500, 1000, 1001, 3000} {
		for i := range n {
			w.stored(i, at, next)
			want[i] = int32(next)
			if i%7 == 0 {
				w.want(want...)
			}
		}
		w.want(want...)
		at = next
	}
	// Some go on and make a group of their own, which is the larger in the end.
	for i := range 30 {
		w.stored(i, at, 3500)
		want[i] = 3500
	}
	w.want(want...)
	for i := range n {
		w.removed(i, int(want[i])-1, int(want[i]))
		want[i]--
	}
	w.want(want...)
	for i := range n {
		w.removed(i, 0, int(want[i]))
		want[i] = 0
	}
	w.want(want...)
}

func TestEvictionTakesTailsFromGroupsAndHolders(t *testing.T) {
	const n = 40
	x, err := New(Options{MaxBlocks: 2000})
	if err != nil {
		t.Fatal(err)
	}
	holders, view := gpuRanks(t, x, n)
	rng := seed.Random(t, 1)
	p := randomPrompt(rng, 1000)
	for _, h := range holders {
		p.report(t, x, h, 0, 1000, 100)
	}
	x.Removed(holders[1], p.ids[100:200])
	p.report(t, x, holders[2], 600, 700, 100) // copies
	out := make([]Result, n)
	last := int32(1000)
	for i := range 100 {
		q := randomPrompt(rng, 100)
		q.report(t, x, holders[i%n], 0, 100, 100)
		x.check(t)
		x.Walk(view, p.keys, out)
		if out[0].GPU > last || out[1].GPU > min(100, out[0].GPU) || out[2] != out[0] || out[n-1] != out[0] {
			t.Fatalf("after %d others: %+v", i, out[:3])
		}
		if last = out[0].GPU; last == 0 {
			return
		}
		x.heads.find(&p.keys[0]).seen.Store(0) // as if it had not been walked
	}
	t.Errorf("of a prompt that others pushed out %d blocks are left", last)
}

func TestNamesThatAnEngineUsesAgainMoveToTheLatestBlock(t *testing.T) {
	w := newWorkers(t, 1)
	w.stored(0, 0, 100)
	h := w.holders[0]
	other := randomPrompt(seed.Random(t, 9), 10)
	copy(other.ids, w.p.ids[40:50])
	other.report(t, w.Index, h, 0, 10, 10)
	w.check(t)
	if k, _ := w.ParentKey(h, w.p.ids[45]); k != other.keys[5] {
		t.Errorf("the name leads to %v", k)
	}
	// The engine cannot name the first prompt's blocks any more, so that it has lost them.
	w.want(40)
	w.removed(0, 40, 50) // the other prompt's blocks
	w.want(40)
	if s := w.Stats(); s.Held != 90 {
		t.Errorf("%+v", s)
	}
}

func TestARestartedEngineMayNameBlocksAnew(t *testing.T) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 1), 100)
	gpu, disk := mustAdd(t, x, "e"), mustAdd(t, x, "d")
	p.report(t, x, gpu, 0, 100, 32)
	p.report(t, x, disk, 0, 100, 32)
	x.Clear(gpu)
	again := prompt{keys: p.keys, ids: make([]uint64, 100)}
	for i := range again.ids {
		again.ids[i] = p.ids[i] + 1
	}
	again.report(t, x, gpu, 0, 100, 32)
	x.check(t)
	if x.holder(gpu).own != nil {
		t.Error("an engine alone in its domain got names of its own")
	}
	if n := x.Removed(gpu, p.ids); n != 100 {
		t.Errorf("%d of the old names are unknown", n)
	}
	if n := x.Removed(gpu, again.ids); n != 0 {
		t.Errorf("%d of the new names are unknown", n)
	}
	x.check(t)
}
