package leader

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// The cases of TensorRT-LLM's transceiver with 64 tokens a block: the store's chain is the
// source, the engine's block table from its own hit on the destination.
func TestTransceiverAlignment(t *testing.T) {
	for _, tc := range []struct {
		name     string
		blocks   int // of the prompt
		computed int
		external int
		table    []uint32
		want     string
		first    int // block that the first slot is filled with
	}{
		{"equal starts", 3, 0, 192, []uint32{20, 21, 22}, "[20 21 22]", 0},
		{"destination begins at 128", 5, 128, 192, []uint32{0, 0, 20, 21, 22}, "[20 21 22]", 2},
		{"source begins at 64", 4, 64, 192, []uint32{20, 21, 22, 23}, "[21 22 23]", 1},
		{"source at 64, destination at 128", 4, 128, 128, []uint32{0, 0, 20, 21}, "[20 21]", 2},
		{"full hit of the engine's own", 3, 192, 0, []uint32{20, 21, 22}, "[]", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Manifest.BlockSize = 64 })
			prompt := tokens(0, 64*tc.blocks+1)
			f.run("seed", prompt, 0, connector.Scope{})
			if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt, Computed: tc.computed}); got != tc.external {
				t.Errorf("offer of %d tokens, want %d", got, tc.external)
			}
			p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{
				Request: "r", Blocks: [][]uint32{tc.table}, Computed: tc.computed, External: tc.external,
			}}})
			if got := loadSlots(p); got != tc.want {
				t.Errorf("loads slots %s, want %s", got, tc.want)
			}
			if len(p.Loads) > 0 && p.Loads[0].Transfers[0].Blocks[0].Key != f.keys(prompt)[tc.first] {
				t.Errorf("the first slot is not filled with block %d", tc.first)
			}
		})
	}
}

func TestGroupsOwnHitAtTheBoundaryLoadsNothing(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 42)
	f.run("seed", prompt, 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: prompt})
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(0, 11), External: 40, GroupComputed: []int{40, 24}}}})
	if got := loadSlots(p); got != fmt.Sprint(tokens(1006, 4)) {
		t.Errorf("loads slots %s, want the window's blocks alone", got)
	}
}

func TestConcurrentCalls(t *testing.T) {
	f, s := newHandoff(t, func(o *Options) { o.MaxRequests = 4 })
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			for i := range 50 {
				id := fmt.Sprint((worker + i) % 6)
				if _, err := f.Match(f.Context(), &connector.MatchRequest{Request: id, Tokens: tokens(i%2, 42)}); err != nil {
					t.Error(err)
				}
				m := f.alloc(id, 20)
				m.Scheduled = []connector.Scheduled{{Request: id, Reset: true, NewBlocks: f.tables(0, 10), Count: 20}}
				if i%3 == 0 {
					m.Finished = []string{id}
				}
				if _, err := f.Step(f.Context(), &m); err != nil {
					t.Error(err)
				}
				if err := f.Loaded(f.Context(), &connector.LoadedReport{Done: []string{id}}); err != nil {
					t.Error(err)
				}
				f.SetReady(i%7 != 0)
				f.Stats()
			}
		})
	}
	all.Wait()
	f.Close()
	if f.x.held() != 0 || s.held() != 0 {
		t.Errorf("%d leases and %d pins are left", f.x.held(), s.held())
	}
}
