package connector

import (
	"errors"
	"slices"
	"testing"
)

func TestTokenRangeIsNeverEmpty(t *testing.T) {
	for _, r := range [][2]int{{0, 0}, {5, 5}, {6, 5}, {-1, 3}} {
		if _, err := NewTokenRange(r[0], r[1]); !errors.Is(err, ErrBadRequest) {
			t.Errorf("[%d, %d): %v, want ErrBadRequest", r[0], r[1], err)
		}
	}
	r, err := NewTokenRange(16, 33)
	if first, end := r.Blocks(16); err != nil || first != 1 || end != 3 {
		t.Errorf("blocks [%d, %d), %v; want [1, 3)", first, end, err)
	}
}

// Each layer group loads its own range of tokens, which begins at its own hit or its window
// and is never empty.
func TestLoadRangeIsTheGroupsOwn(t *testing.T) {
	full, window := Group{Layers: 1}, Group{Layers: 1, Window: 16}
	for _, tc := range []struct {
		name         string
		g            Group
		a            Alloc
		want         TokenRange
		ok           bool
		first, until int
	}{
		{"full attention", full, Alloc{Computed: 8, External: 32}, TokenRange{8, 40}, true, 1, 5},
		{"window", window, Alloc{Computed: 8, External: 32}, TokenRange{24, 40}, true, 3, 5},
		{"window, own hit inside of it", window, Alloc{External: 40, GroupComputed: []int{32}}, TokenRange{32, 40}, true, 4, 5},
		{"boundary inside of a block", full, Alloc{Computed: 8, External: 5}, TokenRange{8, 13}, true, 1, 2},
		{"own hit inside of a block", full, Alloc{Computed: 8, External: 32, GroupComputed: []int{20}}, TokenRange{20, 40}, true, 2, 5},
		{"own hit up to the boundary", full, Alloc{Computed: 8, External: 32, GroupComputed: []int{40}}, TokenRange{40, 40}, false, 5, 5},
		{"own hit up to a boundary inside of a block", full, Alloc{Computed: 8, External: 5, GroupComputed: []int{13}}, TokenRange{13, 13}, false, 2, 2},
		{"nothing taken", full, Alloc{Computed: 8}, TokenRange{8, 8}, false, 1, 1},
	} {
		r, ok := tc.a.LoadTokens(&tc.g, 0, 8)
		if r != tc.want || ok != tc.ok {
			t.Errorf("%s: tokens %v, %v; want %v, %v", tc.name, r, ok, tc.want, tc.ok)
		}
		if first, until := tc.a.LoadRange(&tc.g, 0, 8); first != tc.first || until != tc.until {
			t.Errorf("%s: blocks [%d, %d), want [%d, %d)", tc.name, first, until, tc.first, tc.until)
		}
	}
}

// The cases are those of TensorRT-LLM's transceiver.
func TestAlignBlocks(t *testing.T) {
	for _, tc := range []struct {
		name             string
		src, dst         []int
		srcStart, dstAt  int
		wantSrc, wantDst []int
	}{
		{"equal starts", []int{10, 11, 12}, []int{20, 21, 22}, 0, 0, []int{10, 11, 12}, []int{20, 21, 22}},
		{"destination begins later", []int{10, 11, 12, 13, 14}, []int{20, 21, 22}, 0, 128, []int{12, 13, 14}, []int{20, 21, 22}},
		{"source begins later", []int{10, 11, 12}, []int{20, 21, 22, 23}, 64, 0, []int{10, 11, 12}, []int{21, 22, 23}},
		{"both begin later", []int{10, 11, 12}, []int{20, 21, 22}, 64, 128, []int{11, 12}, []int{20, 21}},
		{"nothing in common", []int{10, 11, 12}, []int{20, 21, 22}, 0, 192, []int{}, []int{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			src, dst := AlignBlocks(tc.src, tc.srcStart, tc.dst, tc.dstAt, 64)
			if !slices.Equal(src, tc.wantSrc) || !slices.Equal(dst, tc.wantDst) {
				t.Errorf("%v / %v, want %v / %v", src, dst, tc.wantSrc, tc.wantDst)
			}
		})
	}
}

func TestWindowNeedsOnlyItsOwnBlocks(t *testing.T) {
	g := Group{Layers: 1, Window: 16}
	for boundary, want := range map[int]int{0: 0, 8: 0, 15: 0, 16: 0, 23: 1, 24: 1, 32: 2, 40: 3} {
		if got := g.FirstBlock(boundary, 8); got != want {
			t.Errorf("behind %d tokens: first block %d, want %d", boundary, got, want)
		}
	}
	full := Group{Layers: 1}
	if got := full.FirstBlock(1000, 8); got != 0 {
		t.Errorf("full attention: first block %d, want 0", got)
	}
}

func TestShardsFollowRanksAndGroups(t *testing.T) {
	m := testManifest()
	m.TensorParallel, m.PipelineParallel = 2, 2
	m.Groups = []Group{
		{Layers: 4},
		{Layers: 2, Window: 32, Stages: []int{1}},
		{Layers: 2, Replicated: true},
	}
	if err := m.Validate(); err != nil {
		t.Fatal(err)
	}
	if got := m.GroupShards(0); len(got) != 4 {
		t.Errorf("sharded group: %v, want a shard for each of 4 ranks", got)
	}
	if got := m.GroupShards(1); len(got) != 2 {
		t.Errorf("group of one stage: %v, want 2 shards", got)
	}
	if _, ok := m.Shard(1, 1); ok {
		t.Error("a rank of stage 0 has a shard of a group of stage 1")
	}
	if got := m.GroupShards(2); len(got) != 2 {
		t.Errorf("replicated group: %v, want one shard a stage", got)
	}
	if m.Writes(1, 2) || !m.Writes(2, 2) || !m.Writes(1, 0) {
		t.Error("replicated KV is written by the first rank of a stage, sharded by every rank")
	}
	seen := map[Shard]bool{}
	for g := range m.Groups {
		for _, s := range m.GroupShards(g) {
			if seen[s] {
				t.Errorf("shard %d belongs to two groups", s)
			}
			seen[s] = true
		}
	}
}
