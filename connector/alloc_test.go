package connector

import (
	"reflect"
	"slices"
	"testing"
)

// Each layer group loads its own range of tokens, which begins at its own hit or its window
// and is never empty.
func TestLoadRangeIsTheGroupsOwn(t *testing.T) {
	full, window := Group{Layers: 1}, Group{Layers: 1, Window: 16}
	for _, tc := range []struct {
		name         string
		g            Group
		a            Alloc
		first, until int
	}{
		{"full attention", full, Alloc{Computed: 8, External: 32}, 1, 5},
		{"window", window, Alloc{Computed: 8, External: 32}, 3, 5},
		{"window, own hit inside of it", window, Alloc{External: 40, GroupComputed: []int{32}}, 4, 5},
		{"boundary inside of a block", full, Alloc{Computed: 8, External: 5}, 1, 2},
		{"own hit inside of a block", full, Alloc{Computed: 8, External: 32, GroupComputed: []int{20}}, 2, 5},
		{"own hit up to the boundary", full, Alloc{Computed: 8, External: 32, GroupComputed: []int{40}}, 5, 5},
		{"own hit up to a boundary inside of a block", full, Alloc{Computed: 8, External: 5, GroupComputed: []int{13}}, 2, 2},
		{"nothing taken", full, Alloc{Computed: 8}, 1, 1},
	} {
		if first, until := tc.a.LoadRange(&tc.g, 0, 8); first != tc.first || until != tc.until {
			t.Errorf("%s: blocks [%d, %d), want [%d, %d)", tc.name, first, until, tc.first, tc.until)
		}
	}
}

func TestStretchesLeaveOutWhatTheEngineDoesNotKeep(t *testing.T) {
	m := testManifest()
	m.BlockSize = 8
	m.Groups = []Group{{Layers: 1}, {Layers: 1, Window: 16}}
	a := Alloc{Computed: 8, External: 32, Blocks: [][]uint32{
		{9, NoBlock, 11, 12, NoBlock, 14},
		{NoBlock, NoBlock, NoBlock, 23}, // shorter than the boundary
		{7},                             // of no group
	}}
	var got []Stretch
	for s := range a.Stretches(&m) {
		got = append(got, s)
	}
	want := []Stretch{{0, 2, []uint32{11, 12}}, {1, 3, []uint32{23}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for s := range a.Stretches(&m) {
		if s.Group != 0 {
			t.Error("goes on after a break")
		}
		break
	}
	if l := a.PlannedLoad(&m); !slices.Equal(l.Blocks, []uint32{11, 12, 23}) {
		t.Errorf("planned %v", l.Blocks)
	}
}

func TestWindowNeedsOnlyItsOwnBlocks(t *testing.T) {
	g := Group{Layers: 1, Window: 16}
	for boundary, want := range map[int]int{0: 0, 8: 0, 15: 0, 16: 0, 23: 1, 24: 1, 32: 2, 40: 3} {
		if got := g.FirstBlock(boundary, 8); got != want {
			t.Errorf("after %d tokens: first block %d, want %d", boundary, got, want)
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
