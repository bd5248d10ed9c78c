package prefix

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// workers is an index with ranks that have a GPU each, and a prompt of 8,000 blocks.
type workers struct {
	*Index
	t       *testing.T
	holders []Holder
	view    *Ranks
	p       prompt
	out     []Result
}

func newWorkers(t *testing.T, n int) *workers {
	w := &workers{Index: newIndex(t), t: t, p: randomPrompt(seed.Random(t, 3), 8000), out: make([]Result, n)}
	w.holders, w.view = gpuRanks(t, w.Index, n)
	return w
}

func (w *workers) stored(worker, from, to int) {
	w.t.Helper()
	w.p.report(w.t, w.Index, w.holders[worker], from, to, 32)
}

func (w *workers) removed(worker, from, to int) {
	w.t.Helper()
	if unknown := w.Removed(w.holders[worker], w.p.ids[from:to]); unknown != 0 {
		w.t.Errorf("worker %d: %d of blocks %d to %d unknown", worker, unknown, from, to)
	}
}

// want checks every worker's prefix.
func (w *workers) want(prefixes ...int32) {
	w.t.Helper()
	w.check(w.t)
	depth := w.Walk(w.view, w.p.keys, w.out)
	for i, n := range prefixes {
		if w.out[i] != (Result{GPU: n, Usable: n, FromGPU: n}) {
			w.t.Errorf("worker %d: %+v, want %d blocks", i, w.out[i], n)
		}
	}
	if depth != int(slices.Max(prefixes)) {
		w.t.Errorf("depth %d of %v", depth, prefixes)
	}
}

func TestBlockEvictedOnOneWorkerEndsItsPrefix(t *testing.T) {
	w := newWorkers(t, 3)
	for i := range 3 {
		w.stored(i, 0, 8000)
	}
	w.want(8000, 8000, 8000)
	w.removed(1, 4001, 4002)
	w.want(8000, 4001, 8000)
}

func TestBlockEvictedThenStoredAgainHealsThePrefix(t *testing.T) {
	w := newWorkers(t, 3)
	for i := range 3 {
		w.stored(i, 0, 8000)
	}
	w.removed(1, 4001, 4002)
	w.stored(1, 4001, 4002)
	w.want(8000, 8000, 8000)
	for _, r := range w.runs {
		if r != nil && r.cover.Load().More != nil {
			t.Errorf("a healed hole left traces: %+v", r.cover.Load().More)
		}
	}
	if s := w.Stats(); s.Runs != 2 {
		t.Errorf("%+v", s)
	}
}

func TestTwoWorkersThatSwapHeadAndTailKeepOnePrefix(t *testing.T) {
	w := newWorkers(t, 3)
	for i := range 3 {
		w.stored(i, 0, 8000)
	}
	w.removed(1, 4000, 8000)
	w.removed(2, 0, 4000)
	w.want(8000, 4000, 0)
	w.removed(1, 0, 4000)
	w.stored(1, 4000, 8000)
	w.stored(2, 0, 4000)
	w.removed(2, 4000, 8000)
	w.want(8000, 0, 4000)
}

func TestBlocksBehindARemovedHeadCountOnlyOnceItIsBack(t *testing.T) {
	w := newWorkers(t, 1)
	w.stored(0, 0, 8000)
	w.removed(0, 0, 1)
	w.want(0)
	w.removed(0, 5000, 8000)
	w.want(0)
	w.stored(0, 0, 1)
	w.want(5000)
}

func TestBlocksNobodyHoldsStayWhileOthersBelowAreHeld(t *testing.T) {
	w := newWorkers(t, 2)
	w.stored(0, 0, 6000)
	w.removed(0, 0, 5999)
	w.want(0, 0)
	if s := w.Stats(); s.Blocks != 6000 || s.Held != 1 {
		t.Errorf("%+v", s)
	}
	if k, ok := w.ParentKey(w.holders[1], w.p.ids[4500]); !ok || k != w.p.keys[4500] {
		t.Errorf("a placeholder's key: %v %v", k, ok)
	}
	w.stored(1, 4501, 8000) // below a placeholder
	w.stored(1, 0, 4501)
	w.want(0, 8000)
	w.removed(0, 5999, 6000)
	w.removed(1, 0, 8000)
	if s := w.Stats(); s.Blocks != 0 || s.Runs != 0 {
		t.Errorf("removed by all: %+v", s)
	}
}

func TestStoresOutOfOrderFillIn(t *testing.T) {
	w := newWorkers(t, 2)
	w.stored(0, 0, 8000)
	for _, from := range seed.Random(t, 1).Perm(80) {
		w.stored(1, from*100, from*100+100)
	}
	w.want(8000, 8000)
}

func TestHolesOfAnySizeAndPlaceAreExact(t *testing.T) {
	w := newWorkers(t, 2)
	for _, hole := range [][2]int{{0, 1}, {63, 64}, {64, 128}, {4095, 4096}, {4096, 4097}, {4000, 4200}, {7999, 8000}, {1, 7999}} {
		w.stored(0, 0, 8000)
		w.stored(1, 0, 8000)
		w.removed(1, hole[0], hole[1])
		w.want(8000, int32(hole[0]))
		w.stored(1, hole[0], hole[1])
		w.want(8000, 8000)
		w.Clear(w.holders[0])
		w.Clear(w.holders[1])
	}
}

func TestStaggeredAndGroupedHoldersAreExact(t *testing.T) {
	w := newWorkers(t, 64)
	var want []int32
	for i := range 64 {
		w.stored(i, 0, (i+1)*125)
		want = append(want, int32(i+1)*125)
	}
	w.want(want...)
	for i := range 64 {
		w.stored(i, (i+1)*125, 8000)
		want[i] = 8000
	}
	w.want(want...)
	// Members leave a group at its end, by a hole, in the middle of a removal, and all at once.
	w.removed(3, 7999, 8000)
	w.removed(4, 100, 101)
	w.removed(5, 3000, 8000)
	w.Clear(w.holders[6])
	want[3], want[4], want[5], want[6] = 7999, 100, 3000, 0
	w.want(want...)
	for i := range 64 {
		w.removed(i, 0, 1)
		if want[i] > 0 {
			want[i] = 0
		}
		if i == 5 {
			break
		}
	}
	w.want(want...)
}

func TestCopiesOfABlockAreCounted(t *testing.T) {
	w := newWorkers(t, 1)
	w.stored(0, 0, 100)
	w.stored(0, 50, 70)
	w.stored(0, 60, 120)
	w.removed(0, 60, 61)
	w.removed(0, 60, 61)
	w.want(120)
	w.removed(0, 60, 61)
	w.want(60)
	if unknown := w.Removed(w.holders[0], w.p.ids[60:61]); unknown != 1 {
		t.Errorf("removed once more than stored: %d unknown", unknown)
	}
	w.stored(0, 60, 61)
	w.want(120)
	w.removed(0, 0, 120) // the further copies stay
	if s := w.Stats(); s.Held != 49 {
		t.Errorf("%d blocks held, want 50 to 99 without 60: %+v", s.Held, s)
	}
}

func TestForksLeaveTheChainWhole(t *testing.T) {
	w := newWorkers(t, 2)
	w.stored(0, 0, 8000)
	w.stored(1, 0, 8000)
	rng := seed.Random(t, 9)
	for at := 1; at < 8000; at += 29 {
		branch := randomPrompt(rng, 3)
		keys := new(connector.KeyHasher).Append(nil, w.p.keys[at-1], branch.tokens, 16)
		if err := w.Stored(w.holders[1], w.p.ids[at-1], true, branch.ids, keys); err != nil {
			t.Fatal(err)
		}
		w.Walk(w.view, append(slices.Clone(w.p.keys[:at]), keys...), w.out)
		if w.out[0].GPU != int32(at) || w.out[1].GPU != int32(at+3) {
			t.Fatalf("fork at %d: %+v", at, w.out)
		}
	}
	w.want(8000, 8000)
	if s := w.Stats(); s.Runs != 2+276 {
		t.Errorf("%d runs for a chain of 8,000 blocks and 276 forks", s.Runs)
	}
	w.Clear(w.holders[1])
	if s := w.Stats(); s.Runs != 2 || s.Blocks != 8000 {
		t.Errorf("forks removed: %+v", s)
	}
	w.want(8000, 0)
}
