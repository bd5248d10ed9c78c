package mintree_test

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk/index/mintree"
)

// TestTreeFindsTheLeastOfAll compares a tree with a list of bounds while leaves come and go, up to
// three levels of blocks.
func TestTreeFindsTheLeastOfAll(t *testing.T) {
	const most = 64*64 + 200
	g := seed.Random(t, 0)
	var tree mintree.Tree
	if _, bound := tree.Least(); bound != mintree.None {
		t.Errorf("an empty tree has bound %d", bound)
	}
	names := make(map[uint32]uint32) // of the leaves there are
	bounds := make([]uint64, most)
	for i := range bounds {
		bounds[i] = mintree.None
	}
	var leaves []uint32
	check := func() {
		t.Helper()
		leaf, bound := tree.Least()
		if want := slices.Min(bounds); bound != want || bound != mintree.None && (bounds[leaf] != bound || tree.Bound(leaf) != bound) {
			t.Fatalf("leaf %d with bound %d; it has %d, and the least is %d", leaf, bound, bounds[leaf], want)
		}
	}
	change := func(leaf uint32) {
		v := g.Uint64N(1000)
		if g.IntN(10) == 0 {
			v = mintree.None
		}
		if g.IntN(2) == 0 {
			tree.Lower(leaf, v)
			v = min(v, bounds[leaf])
		} else {
			tree.Set(leaf, v)
		}
		bounds[leaf] = v
	}
	for step := range 3 * most {
		switch k := g.IntN(4); {
		case k > 0 && len(leaves) < most && step < 2*most || len(leaves) == 0:
			name := g.Uint32()
			leaf := tree.Add(name)
			if _, there := names[leaf]; there || leaf >= most || tree.Bound(leaf) != mintree.None {
				t.Fatalf("new leaf %d: there %v, bound %d", leaf, there, tree.Bound(leaf))
			}
			names[leaf] = name
			leaves = append(leaves, leaf)
		case k > 0 && step >= 2*most || k == 0 && step%2 == 0:
			i := g.IntN(len(leaves))
			if l, _ := tree.Least(); g.IntN(2) == 0 && bounds[l] != mintree.None {
				i = slices.Index(leaves, l)
			}
			leaf := leaves[i]
			tree.Drop(leaf)
			bounds[leaf] = mintree.None
			delete(names, leaf)
			leaves = slices.Delete(leaves, i, i+1)
		}
		for range min(2, len(leaves)) {
			change(leaves[g.IntN(len(leaves))])
		}
		check()
	}
	for leaf, name := range names {
		if tree.Name(leaf) != name || tree.Bound(leaf) != bounds[leaf] {
			t.Errorf("leaf %d is called %d and has %d, want %d and %d", leaf, tree.Name(leaf), tree.Bound(leaf), name, bounds[leaf])
		}
	}
}

// What the index looks at in order of eviction comes out in order, and nothing is lost.
func TestTreeGivesAllInOrder(t *testing.T) {
	const n = 3 * 64 * 64
	g := seed.Random(t, 0)
	var tree mintree.Tree
	want := make([]uint64, n)
	for i := range want {
		want[i] = g.Uint64N(n) // some twice
		tree.Lower(tree.Add(0), want[i])
	}
	slices.Sort(want)
	for i := range want {
		leaf, bound := tree.Least()
		if bound != want[i] {
			t.Fatalf("bound %d is %d, want %d", i, bound, want[i])
		}
		tree.Set(leaf, mintree.None)
	}
	if _, bound := tree.Least(); bound != mintree.None {
		t.Errorf("%d is left", bound)
	}
}

// Leaves that were dropped are used again, so that a store whose segments come and go does not grow.
func TestDroppedLeavesAreUsedAgain(t *testing.T) {
	var tree mintree.Tree
	var leaves []uint32
	for range 1000 {
		leaves = append(leaves, tree.Add(1))
	}
	for _, leaf := range leaves {
		tree.Set(leaf, 5)
		tree.Drop(leaf)
	}
	before := tree.Bytes()
	for range 1000 {
		if leaf := tree.Add(2); leaf >= 1000 || tree.Bound(leaf) != mintree.None || tree.Name(leaf) != 2 {
			t.Fatalf("leaf %d with bound %d", leaf, tree.Bound(leaf))
		}
	}
	if after := tree.Bytes(); after > before {
		t.Errorf("%d bytes, %d before", after, before)
	}
	if per := float64(tree.Bytes()) / 1000; per < 12 || per > 20 {
		t.Errorf("%.1f bytes a leaf", per)
	}
}
