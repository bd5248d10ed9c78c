package leader

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

func TestOfferIsTheStoredPrefixInWholeBlocksAndNeverTheLastToken(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	for _, tc := range []struct {
		name     string
		tokens   []uint32
		computed int
		want     int
	}{
		{"same prompt", tokens(0, 18), 0, 16},
		{"longer prompt", tokens(0, 40), 0, 16},
		{"prompt of exactly the stored blocks", tokens(0, 16), 0, 12},
		{"one token more than a block", tokens(0, 5), 0, 4},
		{"one block", tokens(0, 4), 0, 0},
		{"no tokens", nil, 0, 0},
		{"engine has a part", tokens(0, 18), 8, 8},
		{"engine has all", tokens(0, 18), 16, 0},
		{"engine has more than the prompt", tokens(0, 18), 32, 0},
		{"computed not block-aligned", tokens(0, 18), 6, 0},
		{"other prompt", tokens(1, 18), 0, 0},
		{"other end", append(tokens(0, 8), tokens(100, 10)...), 0, 8},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := f.match(connector.MatchRequest{Request: tc.name, Tokens: tc.tokens, Computed: tc.computed}); got != tc.want {
				t.Errorf("offer of %d tokens, want %d", got, tc.want)
			}
		})
	}
}

// A prompt that the engine still has is no miss of the cache.
func TestTokensThatTheEngineHasAreNotQueried(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	before := f.Stats()
	for i, computed := range []int{0, 8, 16, 18, 99} {
		f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: tokens(0, 18), Computed: computed})
		f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: tokens(0, 18), Computed: computed}) // engines ask again
	}
	s := f.Stats()
	if queried, had, offered := s.QueriedTokens-before.QueriedTokens, s.EngineTokens-before.EngineTokens, s.OfferedTokens-before.OfferedTokens; queried != 18+10+2 || had != 8+16+18+18 || offered != 16+8 {
		t.Errorf("%d tokens queried, the engine had %d, %d offered; want 30, 60 and 24", queried, had, offered)
	}
}

func TestScopesDoNotShare(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{Salt: "a"})
	for i, scope := range []connector.Scope{{}, {Salt: "b"}, {LoRA: "a"}, {Salt: "a", LoRA: "x"}} {
		if got := f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: tokens(0, 18), Scope: scope}); got != 0 {
			t.Errorf("scope %+v is offered %d tokens of another", scope, got)
		}
	}
	if got := f.match(connector.MatchRequest{Request: "same", Tokens: tokens(0, 18), Scope: connector.Scope{Salt: "a"}}); got != 16 {
		t.Errorf("same scope is offered %d tokens, want 16", got)
	}
}

func TestHitNeedsEveryShard(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Manifest.TensorParallel = 2 })
	p := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	delete(f.x.records, store.RecordID{Namespace: testNamespace, Shard: 1, Key: p.Saves[0].Blocks[2].Key})
	f.clock.advance(time.Minute) // the save is long over
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 8 {
		t.Errorf("offer of %d tokens, want the 8 that both shards have", got)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(50, 5)}, Count: 18}}})
	if got := slots(p.Saves); got != "[52]" {
		t.Errorf("saves of slots %s, want [52], the block with a missing shard", got)
	}
}

func TestMatchIsRepeatableAndHoldsOneLease(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	for range 100 {
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 16 {
			t.Fatalf("offer of %d tokens, want 16 each time", got)
		}
	}
	if f.x.held() != 1 {
		t.Errorf("%d leases held, want 1", f.x.held())
	}
	f.step(connector.StepRequest{Finished: []string{"r"}})
	if f.x.held() != 0 || f.Stats().Requests != 0 {
		t.Errorf("%d leases and %d requests left behind", f.x.held(), f.Stats().Requests)
	}
}

func TestTokensAreToldPieceByPiece(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 26), 0, connector.Scope{})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 10)}); got != 8 {
		t.Errorf("offer of %d tokens, want 8", got)
	}
	if got := f.match(connector.MatchRequest{Request: "r", From: 10, Tokens: tokens(10, 8)}); got != 16 {
		t.Errorf("offer of %d tokens after more were told, want 16", got)
	}
	for _, m := range []connector.MatchRequest{{Request: "unknown", From: 4, Tokens: tokens(4, 4)}, {Request: "r", From: 19}} {
		if _, err := f.Match(t.Context(), &m); !errors.Is(err, connector.ErrUnknownRequest) {
			t.Errorf("Match(%q from %d) = %v, want ErrUnknownRequest", m.Request, m.From, err)
		}
	}
	// An id that comes again with other tokens is another request.
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(500, 18)}); got != 0 {
		t.Errorf("offer of %d tokens for other tokens", got)
	}
}

// An engine that wants at most n tokens loaded tells no more of them before it computes the
// rest, not even where the leader knew them: what was offered beyond is let go.
func TestFewerTokensToldBoundTheOffer(t *testing.T) {
	f := newFixture(t, nil)
	prompt := tokens(0, 26)
	f.run("seed", prompt[:18], 0, connector.Scope{})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: prompt, PromptTokens: 26}); got != 16 {
		t.Fatalf("offer of %d tokens, want 16", got)
	}
	if got := f.match(connector.MatchRequest{Request: "r", From: 9, PromptTokens: 26}); got != 8 || f.x.pinned() != 2 {
		t.Errorf("offer of %d tokens and %d records pinned, want 8 and 2", got, f.x.pinned())
	}
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(50, 2), External: 8}}})
	f.loaded("r")
	if f.x.held() != 0 {
		t.Error("leases are held after the load")
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
		Request: "r", Reset: true, NewBlocks: f.tables(50, 7), Computed: 8, Count: 18, From: 9, NewTokens: prompt[9:],
	}}})
	if got := slots(p.Saves); got != "[54 55]" {
		t.Errorf("slots %s are saved, want the two blocks that are not stored", got)
	}
}

func TestLoadIsPlannedWithSlotsBehindTheLocalHit(t *testing.T) {
	f := newFixture(t, nil)
	saved := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), Computed: 4})
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{{9, 20, 21, 22, 23}}, Computed: 4, External: 12}}})
	if got := loadSlots(p); got != "[20 21 22]" {
		t.Fatalf("load of slots %s, want [20 21 22]", got)
	}
	for i, b := range p.Loads[0].Transfers[0].Blocks {
		want := saved.Saves[0].Blocks[i+1]
		if b.Key != want.Key || b.Proof != want.Proof {
			t.Errorf("block %d is loaded by another key or proof than it was saved with", i)
		}
	}
	if p.Loads[0].Transfers[0].Parent != saved.Saves[0].Blocks[0].Key {
		t.Error("the load's parent is not the block before it")
	}
	// What was loaded, and what the store has, is not saved again.
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}}); err != nil {
		t.Fatal(err)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{{9, 20, 21, 22, 23}}, Computed: 16, Count: 2}}})
	if !p.Empty() {
		t.Errorf("saves of slots %s after a full hit", slots(p.Saves))
	}
	if f.x.held() != 0 {
		t.Error("the lease is held after the load")
	}
}

func TestUnknownRequestsLoadFailsInsteadOfHanging(t *testing.T) {
	f := newFixture(t, nil)
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "matched before a restart", Blocks: [][]uint32{{1, 2}}, External: 8}}})
	if len(p.Loads) != 1 || !slices.Equal(p.Loads[0].Lost, []uint32{1, 2}) || len(p.Loads[0].Transfers) > 0 {
		t.Errorf("loads %+v, want one that has lost slots 1 and 2", p.Loads)
	}
}
