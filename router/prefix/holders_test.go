package prefix

import (
	"errors"
	"runtime"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

func mustAdd(t *testing.T, x *Index, domain string) Holder {
	t.Helper()
	h, err := x.AddHolder(domain)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHoldersAreBoundedAndOrdinalsReused(t *testing.T) {
	x, err := New(Options{MaxHolders: 3})
	if err != nil {
		t.Fatal(err)
	}
	for want := range 3 {
		if h := mustAdd(t, x, "e"); int(h) != want {
			t.Errorf("holder %d got ordinal %d", want, h)
		}
	}
	if _, err := x.AddHolder("e"); !errors.Is(err, ErrTooManyHolders) {
		t.Errorf("one too many: %v", err)
	}
	x.RemoveHolder(1)
	x.RemoveHolder(1)
	if x.holder(1) != nil {
		t.Error("a removed holder is there")
	}
	if h := mustAdd(t, x, KeyDomain); h != 1 {
		t.Errorf("ordinal %d after 1 was removed", h)
	}
	if n := x.HolderBlocks(1); n != 0 {
		t.Errorf("a new holder has %d blocks", n)
	}
}

func TestUnknownHoldersAndParentsGetAnAnswer(t *testing.T) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 1), 10)
	if err := x.Stored(7, 0, false, p.ids, p.keys); !errors.Is(err, ErrUnknownHolder) {
		t.Errorf("Stored by nobody: %v", err)
	}
	if n := x.Removed(7, p.ids); n != 10 {
		t.Errorf("Removed by nobody: %d", n)
	}
	if _, ok := x.ParentKey(7, p.ids[0]); ok {
		t.Error("nobody knows a block")
	}
	x.Clear(7)
	x.RemoveHolder(7)
	h := mustAdd(t, x, "e")
	if err := x.Stored(h, 5, true, p.ids, p.keys); !errors.Is(err, ErrUnknownParent) {
		t.Errorf("below an unknown block: %v", err)
	}
	if err := x.Stored(h, 0, false, p.ids[:9], p.keys); err == nil {
		t.Error("9 names for 10 blocks were taken")
	}
	if err := x.Stored(h, 0, false, nil, nil); err != nil {
		t.Errorf("no blocks: %v", err)
	}
	if n := x.Removed(h, p.ids); n != 10 {
		t.Errorf("removed without having any: %d unknown", n)
	}
	if s := x.Stats(); s.Blocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAKeyBelowTwoBlocksIsRefused(t *testing.T) {
	x := newIndex(t)
	h := mustAdd(t, x, "e")
	p := randomPrompt(seed.Random(t, 1), 20)
	p.report(t, x, h, 0, 20, 20)
	if err := x.Stored(h, p.ids[5], true, []uint64{1}, p.keys[:1]); !errors.Is(err, ErrChain) {
		t.Errorf("a prompt's first block below its sixth: %v", err)
	}
	x.check(t)
}

func TestTheNameZeroIsAName(t *testing.T) {
	x := newIndex(t)
	h := mustAdd(t, x, "e")
	p := randomPrompt(seed.Random(t, 1), 3)
	p.ids[1] = 0
	p.report(t, x, h, 0, 3, 1)
	if k, ok := x.ParentKey(h, 0); !ok || k != p.keys[1] {
		t.Errorf("name 0: %v %v", k, ok)
	}
	if n := x.Removed(h, []uint64{0}); n != 0 {
		t.Error("name 0 is unknown")
	}
	x.check(t)
}

func TestEnginesThatNameBlocksDifferentlyDoNotMix(t *testing.T) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 1), 100)
	q := p
	q.ids = make([]uint64, 100)
	for i := range q.ids {
		q.ids[i] = p.ids[99-i] // the other engine's names, for other blocks
	}
	a, b := mustAdd(t, x, "a"), mustAdd(t, x, "b")
	odd := mustAdd(t, x, "a")
	p.report(t, x, a, 0, 100, 32)
	q.report(t, x, b, 0, 100, 32)
	q.report(t, x, odd, 0, 100, 32)
	x.check(t)
	for h, own := range map[Holder]bool{a: false, b: false, odd: true} {
		if n := x.HolderBlocks(h); n != 100 || (x.holder(h).own != nil) != own {
			t.Errorf("holder %d: %d blocks, want names of its own: %v", h, n, own)
		}
	}
	for _, h := range []Holder{b, odd} {
		if k, ok := x.ParentKey(h, p.ids[99]); !ok || k != p.keys[0] {
			t.Errorf("holder %d: %v %v", h, k, ok)
		}
		x.Removed(h, p.ids[:1]) // its last block
	}
	view, err := NewRanks([]Rank{{GPU: a, HasGPU: true}, {GPU: b, HasGPU: true}, {GPU: odd, HasGPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	out := make([]Result, 3)
	if x.Walk(view, p.keys, out); out[0].GPU != 100 || out[1].GPU != 99 || out[2].GPU != 99 {
		t.Errorf("%+v", out)
	}
	x.RemoveHolder(b)
	x.Clear(odd)
	x.check(t)
	p.report(t, x, odd, 0, 100, 32)
	if x.holder(odd).own != nil {
		t.Error("names of its own although the engine was restarted and agrees")
	}
}

func TestStoresHoldABlockOrNot(t *testing.T) {
	x := newIndex(t)
	gpu, disk := mustAdd(t, x, "e"), mustAdd(t, x, KeyDomain)
	p := randomPrompt(seed.Random(t, 1), 50)
	p.report(t, x, gpu, 0, 50, 32)
	ids := make([]uint64, 50)
	for i, k := range p.keys {
		ids[i] = KeyID(k)
	}
	for range 3 {
		if err := x.Stored(disk, ids[9], true, ids[10:], p.keys[10:]); !errors.Is(err, ErrUnknownParent) {
			t.Fatalf("below a block that no store has named: %v", err)
		}
	}
	for range 3 {
		if err := x.Stored(disk, 0, false, ids, p.keys); err != nil {
			t.Fatal(err)
		}
	}
	if n := x.Removed(disk, ids); n != 0 {
		t.Errorf("%d unknown", n)
	}
	if n := x.HolderBlocks(disk); n != 0 {
		t.Errorf("stored three times, removed once: %d blocks", n)
	}
	x.check(t)
}

func TestRemovingHoldersReturnsTheirMemory(t *testing.T) {
	rng := seed.Random(t, 1)
	var prompts []prompt
	for range 200 {
		prompts = append(prompts, randomPrompt(rng, 500))
	}
	live := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for name, forget := range map[string]func(*Index, Holder){
		"cleared": (*Index).Clear, "removed": (*Index).RemoveHolder,
		"block by block": func(x *Index, h Holder) {
			for i := range prompts {
				x.Removed(h, prompts[i].ids)
			}
		},
	} {
		x := newIndex(t)
		holders, _ := gpuRanks(t, x, 3)
		empty := live()
		for i := range prompts {
			for _, h := range holders {
				prompts[i].report(t, x, h, 0, 500, 32)
			}
		}
		full, counted := live()-empty, x.Stats().Bytes
		if full < 3<<20 || counted < full*3/4 || counted > full*5/4 {
			t.Errorf("%s: %d bytes for 100,000 blocks, counted as %d", name, full, counted)
		}
		for _, h := range holders {
			forget(x, h)
		}
		x.check(t)
		if left := live() - empty; left > full/20 {
			t.Errorf("%s: of %d bytes %d are left", name, full, left)
		}
		if s := x.Stats(); s.Blocks != 0 || s.Bytes > counted/20 {
			t.Errorf("%s: %+v", name, s)
		}
		runtime.KeepAlive(x)
	}
}

func TestOptionsOutOfBoundsAreRefused(t *testing.T) {
	for _, o := range []Options{{MaxBlocks: -1}, {MaxBlocks: MaxBlocksLimit + 1}, {MaxBytes: 1}, {MaxHolders: -1}, {MaxHolders: 1 << 17}} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if _, err := NewRanks([]Rank{{GPU: 1 << 20, HasGPU: true}}); err == nil {
		t.Error("a holder beyond all bounds was taken")
	}
	for tier, want := range map[Tier]string{GPU: "gpu", Disk: "disk", Object: "object"} {
		if tier.String() != want {
			t.Errorf("%d is called %v", tier, tier)
		}
	}
}
