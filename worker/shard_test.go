package worker

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/store/host"
)

// twoRanks is a manifest of two ranks with sharded and replicated layers.
func twoRanks() *connector.Manifest {
	m := testManifest()
	m.TensorParallel = 2
	m.Groups = append(m.Groups, connector.Group{Layers: 2, Replicated: true})
	return m
}

func TestRanksKeepTheirOwnShardsAndShareReplicatedOnes(t *testing.T) {
	s := openStore(t)
	var ranks [2]*Worker
	var mems [2]*engineMemory
	for rank := range ranks {
		ranks[rank] = newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Manifest, o.Rank = twoRanks(), rank })
		mems[rank] = newEngineMemory(t)
		l := testLayout()
		// The groups share the memory: slots 0 to 7 for one, 8 to 15 for the other.
		l.Groups = append(l.Groups, l.Groups[0])
		registerLayout(t, ranks[rank], mems[rank], &l)
	}
	replicated := transfer(0, 8, 9)
	replicated.Group = 1
	for rank := range ranks {
		mems[rank].fill(0, 10+rank)
		mems[rank].fill(1, 20+rank)
		mems[rank].fill(8, 50)
		mems[rank].fill(9, 51)
		r, err := ranks[rank].Save(t.Context(), saves(transfer(0, 0, 1), replicated))
		if want := 4 - 2*rank; err != nil || r.Taken != want || r.Dropped != 0 {
			t.Errorf("rank %d: %+v, %v; want %d taken", rank, r, err, want)
		}
		settle(t, ranks[rank])
	}
	for rank := range ranks {
		for slot := range blocks {
			mems[rank].fill(slot, 99)
		}
		replicated.Blocks[0].Slot, replicated.Blocks[1].Slot = 12, 13
		if _, err := ranks[rank].Load(t.Context(), loads(loadOf("r", transfer(0, 4, 5), replicated))); err != nil {
			t.Fatal(err)
		}
		if l := poll(t, ranks[rank], 1); len(l[0].FailedBlocks) != 0 {
			t.Errorf("rank %d: blocks %v failed", rank, l[0].FailedBlocks)
		}
		for slot, n := range map[int]int{4: 10 + rank, 5: 20 + rank, 12: 50, 13: 51} {
			if !mems[rank].holds(slot, n) {
				t.Errorf("rank %d: slot %d does not hold content %d", rank, slot, n)
			}
		}
	}
}

// A layout that has bytes of what the rank does not keep, or none of what it does, would put
// one shard's bytes in another's place.
func TestLayoutMustHaveWhatTheManifestSaysOfTheRank(t *testing.T) {
	staged := twoRanks() // the second group is in the second stage
	staged.TensorParallel, staged.PipelineParallel = 1, 2
	staged.Groups[1].Replicated, staged.Groups[0].Stages, staged.Groups[1].Stages = false, []int{0}, []int{1}
	whole := testLayout().Groups[0]
	for name, tc := range map[string]struct {
		manifest      *connector.Manifest
		first, second connector.GroupLayout
		fits          bool
	}{
		"both groups":              {twoRanks(), whole, whole, true},
		"without one that it has":  {twoRanks(), whole, connector.GroupLayout{}, false},
		"its stage's alone":        {staged, whole, connector.GroupLayout{}, true},
		"with the other stage's":   {staged, whole, whole, false},
		"the other stage's alone":  {staged, connector.GroupLayout{}, whole, false},
		"neither of the two":       {staged, connector.GroupLayout{}, connector.GroupLayout{}, false},
		"without one, other first": {twoRanks(), connector.GroupLayout{}, whole, false},
	} {
		w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Manifest = tc.manifest })
		l := connector.Layout{Groups: []connector.GroupLayout{tc.first, tc.second}}
		page, f, err := fence.New()
		if err != nil {
			t.Fatal(err)
		}
		_, err = w.Register(t.Context(), &l, newEngineMemory(t).descriptor(), f)
		if tc.fits && err != nil || !tc.fits && !errors.Is(err, connector.ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
		_ = page.Close()
	}
}

func engineKeys() *connector.Manifest {
	m := testManifest()
	m.KeyScheme = connector.KeySchemeEngine
	return m
}
