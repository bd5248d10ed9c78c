package leader

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// hybrid has full attention in group 0 and a window of 16 tokens in group 1.
func hybrid(o *Options) {
	o.Manifest = testManifest(connector.Group{Layers: 2}, connector.Group{Layers: 4, Window: 16})
}

func TestGapInTheWindowsPastDoesNotShortenTheMatch(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	keys := f.keys(prompt)
	for i := range 16 { // the window of boundary 80 begins in block 16
		f.setStored(1, keys[i], false)
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 80 {
		t.Fatalf("offer of %d tokens, want 80: the window needs its last blocks only", got)
	}
	if got, want := f.x.pinned(), 20+4; got != want {
		t.Errorf("%d records pinned, want %d: all of the full group and the window", got, want)
	}
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(0, 21), External: 80}}})
	if got := groupSlots(p.Loads[0].Transfers, 1); got != "[1016 1017 1018 1019]" {
		t.Errorf("window group loads slots %s, want the window's blocks", got)
	}
	if got := groupSlots(p.Loads[0].Transfers, 0); got != fmt.Sprint(tokens(0, 20)) {
		t.Errorf("full group loads slots %s, want all", got)
	}
}

func TestMissingWindowBlockMovesTheBoundaryLeftToTheNextWholeWindow(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	keys := f.keys(prompt)
	for _, gone := range []int{18, 12} {
		f.setStored(1, keys[gone], false)
		if got, want := f.match(connector.MatchRequest{Request: fmt.Sprint(gone), Tokens: prompt}), 4*18; got != want {
			t.Errorf("window block %d gone: offer of %d tokens, want %d", gone, got, want)
		}
	}
	f.setStored(1, keys[15], false) // now no window is whole between 15 and 18, nor 12 and 15
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 4*12 {
		t.Errorf("offer of %d tokens, want 48", got)
	}
	// What the engine has of the window needs not be stored.
	if got := f.match(connector.MatchRequest{Request: "s", Tokens: prompt, Computed: 4 * 16}); got != 8 {
		t.Errorf("offer of %d tokens after 64 computed ones, want 8", got)
	}
}

func TestTiersAreAskedOnceForARangeOfBlocks(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		hybrid(o)
		o.Manifest.TensorParallel = 2
	})
	f.run("seed", tokens(0, 82), 0, connector.Scope{})
	if f.x.asked != 2 {
		t.Errorf("asked %d times for the saves of two groups, none of whose blocks is there, want 2", f.x.asked)
	}
	f.x.asked = 0
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 82)}); got != 80 || f.x.asked != 2 {
		t.Errorf("offer of %d tokens, asked %d times for both shards of a window, want 2", got, f.x.asked)
	}
}

func TestFullAttentionBoundsTheMatchOfAWindow(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	f.setStored(0, f.keys(prompt)[10], false)
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 40 {
		t.Errorf("offer of %d tokens, want 40", got)
	}
	if got, want := f.x.pinned(), 10+4; got != want {
		t.Errorf("%d records pinned, want %d", got, want)
	}
}

func TestModelOfWindowsAloneNeedsNoBeginning(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Manifest = testManifest(connector.Group{Layers: 2, Window: 8}, connector.Group{Layers: 4, Window: 16})
	})
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	for _, k := range f.keys(prompt)[:16] {
		f.setStored(0, k, false)
		f.setStored(1, k, false)
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 80 {
		t.Errorf("offer of %d tokens, want 80", got)
	}
}

func TestEvictionDuringTheMatchOnlyShortensTheOffer(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	keys := f.keys(prompt)
	lookups := 0
	f.x.onLookup = func() {
		if lookups++; lookups == 2 { // between the search and the pinning of the window
			for id := range f.x.records {
				if id.Key == keys[17] && slices.Contains(f.groups[1].Shards, id.Shard) {
					delete(f.x.records, id)
				}
			}
		}
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 4*17 {
		t.Errorf("offer of %d tokens, want 68", got)
	}
	if got, want := f.x.pinned(), 17+4; got != want {
		t.Errorf("%d records pinned, want %d", got, want)
	}
}

// The cases of TensorRT-LLM's transceiver: 8 tokens a block, prompt of 32, window of 16;
// the blocks before the window are stale, and cached ones are not sent again.
func TestTransceiverSWA(t *testing.T) {
	for _, tc := range []struct {
		cached int // blocks
		want   string
	}{{0, "[20 21]"}, {2, "[20 21]"}, {3, "[21]"}, {4, "[]"}} {
		t.Run(fmt.Sprintf("cached %d", tc.cached), func(t *testing.T) {
			f := newFixture(t, func(o *Options) {
				o.Manifest = testManifest(connector.Group{Layers: 1}, connector.Group{Layers: 1, Window: 16})
				o.Manifest.BlockSize = 8
			})
			prompt := tokens(0, 33)
			f.run("seed", prompt, 0, connector.Scope{})
			f.match(connector.MatchRequest{Request: "r", Tokens: prompt})
			p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{
				Request: "r", External: 32, GroupComputed: []int{0, 8 * tc.cached},
				Blocks: [][]uint32{{0, 1, 2, 3}, {connector.NoBlock, connector.NoBlock, 20, 21}},
			}}})
			if got := groupSlots(p.Loads[0].Transfers, 1); got != tc.want {
				t.Errorf("window group loads slots %s, want %s", got, tc.want)
			}
			if got := groupSlots(p.Loads[0].Transfers, 0); got != "[0 1 2 3]" {
				t.Errorf("full group loads slots %s: the window's hit is its own", got)
			}
			for _, tr := range p.Loads[0].Transfers {
				for _, b := range tr.Blocks {
					if want := f.keys(prompt)[b.Slot-uint32(18*tr.Group)]; b.Key != want {
						t.Errorf("slot %d is filled with another block's bytes", b.Slot)
					}
				}
			}
		})
	}
}

func TestTransceiverSpeculativeBlocksAreNeitherLoadedNorSaved(t *testing.T) {
	for prompt, want := range map[int]int{16: 2, 17: 2, 24: 3} { // tokens and 7 drafted ones in blocks of 8
		f := newFixture(t, func(o *Options) { o.Manifest.BlockSize = 8 })
		toks := tokens(0, prompt)
		f.match(connector.MatchRequest{Request: "r", Tokens: toks})
		p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(0, (prompt+7+7)/8), Count: prompt + 7}}})
		if got := slots(p.Saves); got != fmt.Sprint(tokens(0, want)) {
			t.Errorf("prompt of %d tokens saves slots %s, want the first %d", prompt, got, want)
		}
	}
}

func TestOfferHonouredInPart(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 82)
	f.run("seed", prompt, 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: prompt})
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(0, 21), External: 42}}})
	if got := groupSlots(p.Loads[0].Transfers, 0); got != fmt.Sprint(tokens(0, 11)) {
		t.Errorf("full group loads slots %s, want those of 42 tokens", got)
	}
	if got := groupSlots(p.Loads[0].Transfers, 1); got != fmt.Sprint(tokens(1006, 5)) {
		t.Errorf("window group loads slots %s, want the window of boundary 42", got)
	}
	if f.x.held() != 3 {
		t.Errorf("%d leases, want those of the offer and of the other window", f.x.held())
	}
	f.loaded("r")
	if f.x.held() != 0 {
		t.Error("leases are held after the load")
	}
}

func TestUnplacedBlocksAreNeitherLoadedNorSaved(t *testing.T) {
	f := newFixture(t, hybrid)
	prompt := tokens(0, 42)
	none := slices.Repeat([]uint32{connector.NoBlock}, 6)
	f.match(connector.MatchRequest{Request: "seed", Tokens: prompt})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
		Request: "seed", Reset: true, Count: 42, NewBlocks: [][]uint32{tokens(0, 11), append(none, 6, 7, 8, 9, 10)},
	}}})
	if got := groupSlots(p.Saves, 1); got != "[6 7 8 9]" {
		t.Errorf("window group saves slots %s, want those that are there", got)
	}
	if got := p.Saves[1].Parent; got != f.keys(prompt)[5] {
		t.Error("the parent is not the block in front, though that is saved by nobody")
	}
	f.save(p)
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 40 {
		t.Fatalf("offer of %d tokens, want 40", got)
	}
	table := []uint32{0, 0, 0, 0, 0, 0, 6, connector.NoBlock, 8, 9, 10}
	p = f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(0, 11), table}, External: 40}}})
	if got := groupSlots(p.Loads[0].Transfers, 1); got != "[6 8 9]" || len(p.Loads[0].Transfers) != 3 {
		t.Errorf("window group loads slots %s in %d transfers, want [6 8 9] in 2", got, len(p.Loads[0].Transfers)-1)
	}
	if tr := p.Loads[0].Transfers[2]; tr.Parent != f.keys(prompt)[7] {
		t.Error("after a gap the parent is not the block in the gap")
	}
}

// A block that has left the window may hold another request's bytes by the time the
// leader learns its tokens.
func TestBlocksOutOfTheWindowAreNotSavedLate(t *testing.T) {
	f := newFixture(t, hybrid)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 3)})
	f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(0, 12), Count: 40}}})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 40, Count: 1, From: 3, NewTokens: tokens(3, 41)}}})
	if got := groupSlots(p.Saves, 0); got != fmt.Sprint(tokens(0, 10)) {
		t.Errorf("full group saves slots %s", got)
	}
	if got := groupSlots(p.Saves, 1); got != fmt.Sprint(tokens(1006, 4)) {
		t.Errorf("window group saves slots %s, want none before its window of boundary 40", got)
	}
}

// A client may tell the decodes of several steps at once: by the last of them the engine has
// given away what left the window before it.
func TestBlocksThatLeaveTheWindowInStepsToldTogetherAreNotSaved(t *testing.T) {
	f := newFixture(t, hybrid)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)})
	f.SetReady(false) // so that nothing is saved yet
	f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(0, 11), Count: 42}}})
	f.SetReady(true)
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 42, Count: 2, From: 42, NewTokens: tokens(42, 2)}}})
	if got := groupSlots(p.Saves, 1); got != fmt.Sprint(tokens(1007, 4)) {
		t.Errorf("window group saves slots %s, want those in the window of the token at 43", got)
	}
	if got := groupSlots(p.Saves, 0); got != fmt.Sprint(tokens(0, 11)) {
		t.Errorf("full group saves slots %s, want all", got)
	}
}

func TestRanksShareOnePlan(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Manifest = testManifest(connector.Group{Layers: 2}, connector.Group{Layers: 2, Replicated: true})
		o.Manifest.TensorParallel = 4
	})
	prompt := tokens(0, 10)
	p := f.run("seed", prompt, 0, connector.Scope{})
	if len(p.Saves) != 2 {
		t.Errorf("%d transfers, want one for each group whatever the ranks", len(p.Saves))
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt}); got != 8 {
		t.Errorf("offer of %d tokens, want 8", got)
	}
	if got, want := f.x.pinned(), 2*(4+1); got != want {
		t.Errorf("%d records pinned, want %d: replicated KV is stored once", got, want)
	}
}
