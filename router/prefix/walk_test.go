package prefix

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// tieredIndex has a prompt of 10,000 blocks, a rank with GPU, disk and bucket, and one with
// the same disk only. Every tier has the blocks of its stretches.
func tieredIndex(t *testing.T, gpu, disk, object [][2]int) (*Index, *Ranks, prompt) {
	x := newIndex(t)
	p := randomPrompt(seed.Random(t, 4), 10_000)
	base := mustAdd(t, x, "e")
	p.report(t, x, base, 0, 10_000, 100) // so that every parent is known
	keyed := p
	keyed.ids = nil
	for _, k := range p.keys {
		keyed.ids = append(keyed.ids, KeyID(k))
	}
	h := [3]Holder{mustAdd(t, x, "e"), mustAdd(t, x, KeyDomain), mustAdd(t, x, "e")}
	keyed.report(t, x, h[1], 0, 10_000, 500)
	for _, id := range keyed.ids {
		x.Removed(h[1], []uint64{id})
	}
	for i, stretches := range [3][][2]int{gpu, disk, object} {
		for _, s := range stretches {
			from := &p
			if i == 1 {
				from = &keyed
			}
			from.report(t, x, h[i], s[0], s[1], 500)
		}
	}
	view, err := NewRanks([]Rank{{GPU: h[0], HasGPU: true, Disks: h[1:2], Objects: h[2:]}, {Disks: h[1:2]}, {}})
	if err != nil {
		t.Fatal(err)
	}
	return x, view, p
}

func TestTiersAreCombinedBlockByBlock(t *testing.T) {
	type stretches = [][2]int
	for _, c := range []struct {
		name              string
		gpu, disk, object stretches
		want              Result
		diskOnly          int32
	}{
		{"the gpu alone", stretches{{0, 9000}}, nil, nil, Result{GPU: 9000, Usable: 9000, FromGPU: 9000}, 0},
		{"the disk goes on after the gpu", stretches{{0, 5000}}, stretches{{0, 8000}}, nil,
			Result{GPU: 5000, Disk: 3000, Usable: 8000, FromGPU: 5000, FromDisk: 3000}, 8000},
		{"a gpu block after a gap that the disk fills", stretches{{0, 100}, {200, 6000}}, stretches{{50, 250}}, nil,
			Result{GPU: 100, Disk: 150, Usable: 6000, FromGPU: 5900, FromDisk: 100}, 0},
		{"every tier has its part", stretches{{0, 10}}, stretches{{10, 4096}}, stretches{{4000, 4200}},
			Result{GPU: 10, Disk: 4086, Object: 104, Usable: 4200, FromGPU: 10, FromDisk: 4086, FromObject: 104}, 0},
		{"the first block on disk only", stretches{{1, 10}}, stretches{{0, 1}, {9, 20}}, stretches{{5, 12}},
			Result{Disk: 1, Usable: 20, FromGPU: 9, FromDisk: 11}, 1},
		{"a gap in all tiers", stretches{{0, 10}, {12, 100}}, stretches{{0, 11}, {12, 100}}, stretches{{12, 100}},
			Result{GPU: 10, Disk: 1, Usable: 11, FromGPU: 10, FromDisk: 1}, 11},
		{"all tiers have all", stretches{{0, 10_000}}, stretches{{0, 10_000}}, stretches{{0, 10_000}},
			Result{GPU: 10_000, Usable: 10_000, FromGPU: 10_000}, 10_000},
		{"alternating", stretches{{0, 1}, {2, 3}, {4, 5}}, stretches{{1, 2}, {3, 4}}, nil,
			Result{GPU: 1, Disk: 1, Usable: 5, FromGPU: 3, FromDisk: 2}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, view, p := tieredIndex(t, c.gpu, c.disk, c.object)
			out := make([]Result, 3)
			check := func(how string, depth int) {
				t.Helper()
				diskOnly := Result{Disk: c.diskOnly, Usable: c.diskOnly, FromDisk: c.diskOnly}
				if out[0] != c.want || out[1] != diskOnly || out[2] != (Result{}) || depth != int(c.want.Usable) {
					t.Errorf("%s: %+v, depth %d, want %+v and %d on disk", how, out, depth, c.want, c.diskOnly)
				}
			}
			check("keys", x.Walk(view, p.keys, out))
			var s Scratch
			check("tokens", x.WalkTokens(view, testRoot, p.tokens, 16, &s, out))
		})
	}
}

func TestHashingStopsWhereTheWalkEnds(t *testing.T) {
	w := newWorkers(t, 2)
	w.stored(0, 0, 8000)
	w.stored(1, 0, 700)
	stranger := mustAdd(t, w.Index, "engine")
	if err := w.Stored(stranger, 0, false, w.p.ids, w.p.keys); err != nil {
		t.Fatal(err)
	}
	other := randomPrompt(seed.Random(t, 8), 8000)
	left := append(append([]uint32(nil), w.p.tokens[:1000*16]...), other.tokens[1000*16:]...)
	var s Scratch
	only1, err := NewRanks([]Rank{{GPU: w.holders[1], HasGPU: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name        string
		ranks       *Ranks
		tokens      []uint32
		depth, most int
	}{
		{"nobody has it", w.view, other.tokens, 0, 1},
		{"it leaves the chain", w.view, left, 1000, 1000 + maxStretch},
		{"the ranks have less than others", only1, w.p.tokens, 700, 700},
		{"all there", w.view, w.p.tokens, 8000, 8000},
		{"and a part of a block", w.view, w.p.tokens[:100*16+15], 100, 100},
		{"less than a block", w.view, w.p.tokens[:15], 0, 0},
		{"no tokens", w.view, nil, 0, 0},
	} {
		depth := w.WalkTokens(c.ranks, testRoot, c.tokens, 16, &s, w.out)
		if depth != c.depth || len(s.Keys()) < c.depth || len(s.Keys()) > c.most {
			t.Errorf("%s: depth %d, %d keys hashed; want %d, at most %d", c.name, depth, len(s.Keys()), c.depth, c.most)
		}
		if all := s.AllKeys(); len(all) != len(c.tokens)/16 {
			t.Errorf("%s: %d keys in all", c.name, len(all))
		}
	}
	if depth := w.WalkTokens(w.view, testRoot, w.p.tokens, 0, &s, w.out); depth != 0 || len(s.AllKeys()) != 0 {
		t.Errorf("block size 0: depth %d", depth)
	}
}

func TestAThousandRanksWithTwoMillionTokens(t *testing.T) {
	const ranks = 1000
	blocks := 125_000
	if raceEnabled {
		blocks = 20_000
	}
	x := newIndex(t)
	holders, view := gpuRanks(t, x, ranks)
	p := randomPrompt(seed.Random(t, 1), blocks)
	p.report(t, x, holders[0], 0, blocks, 1024)
	for i, h := range holders[1:] {
		p.report(t, x, h, 0, (i+1)*blocks/ranks, 10_000)
	}
	out := make([]Result, ranks)
	var s Scratch
	if depth := x.WalkTokens(view, testRoot, p.tokens, 16, &s, out); depth != blocks {
		t.Errorf("depth %d", depth)
	}
	for i, r := range out[1:] {
		if int(r.GPU) != (i+1)*blocks/ranks {
			t.Fatalf("rank %d: %+v", i+1, r)
		}
	}
	x.check(t)
}

func TestWalksDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("pools allocate under the race detector")
	}
	w := newWorkers(t, 64)
	for i := range 64 {
		w.stored(i, 0, (i+1)*125)
		w.removed(i, i, i+1)
	}
	var s Scratch
	if n := testing.AllocsPerRun(100, func() { w.Walk(w.view, w.p.keys, w.out) }); n != 0 {
		t.Errorf("a walk allocates %v times", n)
	}
	for _, blockSize := range []int{16, 32} {
		if n := testing.AllocsPerRun(100, func() { w.WalkTokens(w.view, testRoot, w.p.tokens, blockSize, &s, w.out) }); n != 0 {
			t.Errorf("a walk from tokens, block size %d, allocates %v times", blockSize, n)
		}
	}
}
