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

// testIndex stands for the store. The leader is tested against the real one in package
// integration.
type testIndex struct {
	records map[store.RecordID]bool
	leases  map[store.LeaseID]bool
	next    store.LeaseID
}

func (x *testIndex) Lookup(ns store.NamespaceID, shards []connector.Shard, chain []connector.Key, _ time.Duration) (int, store.LeaseID) {
	n := 0
	for n < len(chain) && x.all(ns, shards, chain[n]) {
		n++
	}
	if n == 0 {
		return 0, 0
	}
	x.next++
	x.leases[x.next] = true
	return n, x.next
}

func (x *testIndex) all(ns store.NamespaceID, shards []connector.Shard, k connector.Key) bool {
	return !slices.ContainsFunc(shards, func(s connector.Shard) bool {
		return !x.records[store.RecordID{Namespace: ns, Shard: s, Key: k}]
	})
}

func (x *testIndex) Renew(id store.LeaseID, _ time.Duration) bool { return x.leases[id] }
func (x *testIndex) Release(id store.LeaseID)                     { delete(x.leases, id) }
func (x *testIndex) Has(id store.RecordID) bool                   { return x.records[id] }

// fixture is a leader with 4-token blocks on an empty index.
type fixture struct {
	*testing.T
	*Leader
	x *testIndex
}

func newFixture(t *testing.T, change func(*Options)) *fixture {
	t.Helper()
	x := &testIndex{records: map[store.RecordID]bool{}, leases: map[store.LeaseID]bool{}}
	o := Options{Namespace: 1, BlockSize: 4, Shards: 1}
	if change != nil {
		change(&o)
	}
	l, err := New(o, x)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, l, x}
}

// tokens are n tokens that begin with first.
func tokens(first, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(first + i)
	}
	return out
}

func (f *fixture) match(m connector.MatchRequest) int {
	f.Helper()
	o, err := f.Match(f.Context(), &m)
	if err != nil {
		f.Fatal(err)
	}
	if o.Async != (o.Tokens > 0) {
		f.Errorf("offer %+v: async exactly where there is one", o)
	}
	return o.Tokens
}

func (f *fixture) step(m connector.StepRequest) *connector.Plan {
	f.Helper()
	r, err := f.Step(f.Context(), &m)
	if err != nil {
		f.Fatal(err)
	}
	if len(r.Metadata) == 0 {
		return new(connector.Plan)
	}
	p, err := connector.ParsePlan(r.Metadata)
	if err != nil {
		f.Fatal(err)
	}
	if len(p.Loads) != len(r.Loads) {
		f.Errorf("%d loads in the metadata, %d beside it", len(p.Loads), len(r.Loads))
	}
	return p
}

// slots lists the slots of transfers.
func slots(ts []connector.Transfer) string {
	var out []uint32
	for _, t := range ts {
		for _, b := range t.Blocks {
			out = append(out, b.Slot)
		}
	}
	return fmt.Sprint(out)
}

// save stores what a plan saves, on every shard below shards.
func (f *fixture) save(p *connector.Plan, shards int) {
	for _, t := range p.Saves {
		for _, b := range t.Blocks {
			for s := range shards {
				f.x.records[store.RecordID{Namespace: 1, Shard: connector.Shard(s), Key: b.Key}] = true
			}
		}
	}
}

// run computes a whole prompt in one step and stores it.
func (f *fixture) run(id string, toks []uint32, slot int, scope connector.Scope) *connector.Plan {
	f.Helper()
	f.match(connector.MatchRequest{Request: id, Tokens: toks, Scope: scope})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Reset: true, NewBlocks: tokens(slot, (len(toks)+3)/4), Count: len(toks)}}})
	f.save(p, f.opts.Shards)
	f.step(connector.StepRequest{Finished: []string{id}})
	return p
}

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
	f := newFixture(t, func(o *Options) { o.Shards = 2 })
	p := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	delete(f.x.records, store.RecordID{Namespace: 1, Shard: 1, Key: p.Saves[0].Blocks[2].Key})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 8 {
		t.Errorf("offer of %d tokens, want the 8 that both shards have", got)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: tokens(50, 5), Count: 18}}})
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
	if len(f.x.leases) != 1 {
		t.Errorf("%d leases held, want 1", len(f.x.leases))
	}
	f.step(connector.StepRequest{Finished: []string{"r"}})
	if len(f.x.leases) != 0 || f.Stats().Requests != 0 {
		t.Errorf("%d leases and %d requests left behind", len(f.x.leases), f.Stats().Requests)
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

func TestLoadIsPlannedWithSlotsBehindTheLocalHit(t *testing.T) {
	f := newFixture(t, nil)
	saved := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), Computed: 4})
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: []uint32{9, 20, 21, 22, 23}, Computed: 4, External: 12}}})
	if got := slots(p.Loads); got != "[20 21 22]" {
		t.Fatalf("load of slots %s, want [20 21 22]", got)
	}
	for i, b := range p.Loads[0].Blocks {
		want := saved.Saves[0].Blocks[i+1]
		if b.Key != want.Key || b.Proof != want.Proof {
			t.Errorf("block %d is loaded by another key or proof than it was saved with", i)
		}
	}
	if p.Loads[0].Parent != saved.Saves[0].Blocks[0].Key {
		t.Error("the load's parent is not the block before it")
	}
	// What was loaded, and what the store has, is not saved again.
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}}); err != nil {
		t.Fatal(err)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: []uint32{9, 20, 21, 22, 23}, Computed: 16, Count: 2}}})
	if !p.Empty() {
		t.Errorf("saves of slots %s after a full hit", slots(p.Saves))
	}
	if len(f.x.leases) != 0 {
		t.Error("the lease is held after the load")
	}
}

func TestUnknownRequestsLoadFailsInsteadOfHanging(t *testing.T) {
	f := newFixture(t, nil)
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "matched before a restart", Blocks: []uint32{1, 2}, External: 8}}})
	if got := slots(p.Loads); got != "[1 2]" {
		t.Fatalf("load of slots %s, want [1 2]", got)
	}
	for _, b := range p.Loads[0].Blocks {
		if b.Key != (connector.Key{}) {
			t.Error("the load names a record")
		}
	}
}

func TestSavesFollowChunkedPrefillAndDecode(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 10)})
	for i, tc := range []struct {
		s    connector.Scheduled
		want string
	}{
		{connector.Scheduled{Reset: true, NewBlocks: []uint32{5, 6}, Count: 6}, "[5]"},
		{connector.Scheduled{NewBlocks: []uint32{7}, Computed: 6, Count: 4}, "[6]"},
		{connector.Scheduled{Computed: 10, Count: 1, From: 10, NewTokens: []uint32{90}}, "[]"},
		{connector.Scheduled{Computed: 11, Count: 1, From: 11, NewTokens: []uint32{91}}, "[7]"},
		{connector.Scheduled{NewBlocks: []uint32{8}, Computed: 12, Count: 1, From: 12, NewTokens: []uint32{92}}, "[]"},
	} {
		tc.s.Request = "r"
		if got := slots(f.step(connector.StepRequest{Scheduled: []connector.Scheduled{tc.s}}).Saves); got != tc.want {
			t.Errorf("step %d saves slots %s, want %s", i, got, tc.want)
		}
	}
}

// A forward pass may run ahead of the tokens that the scheduler knows.
func TestBlocksWithUnknownTokensAreNotSavedYet(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 7)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: []uint32{1, 2}, Count: 8}}})
	if got := slots(p.Saves); got != "[1]" {
		t.Errorf("saves of slots %s, want [1]", got)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 8, Count: 1, From: 7, NewTokens: []uint32{7, 8}}}})
	if got := slots(p.Saves); got != "[2]" {
		t.Errorf("saves of slots %s once the token is known, want [2]", got)
	}
}

func TestSharedPrefixIsSavedOnceAStep(t *testing.T) {
	f := newFixture(t, nil)
	for _, id := range []string{"a", "b"} {
		f.match(connector.MatchRequest{Request: id, Tokens: append(tokens(0, 8), tokens(len(id)*100, 4)...)})
	}
	f.match(connector.MatchRequest{Request: "b", Tokens: append(tokens(0, 8), 1, 2, 3, 4)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{
		{Request: "a", Reset: true, NewBlocks: []uint32{1, 2, 3}, Count: 12},
		{Request: "b", Reset: true, NewBlocks: []uint32{4, 5, 6}, Count: 12},
	}})
	if got := slots(p.Saves); got != "[1 2 3 6]" {
		t.Errorf("saves of slots %s, want [1 2 3 6]", got)
	}
}

func TestFailedLoadIsNotOfferedAgainAndIsSavedAgain(t *testing.T) {
	f := newFixture(t, nil)
	saved := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: tokens(20, 5), External: 16}}})
	// Block 2 (slot 22) was corrupt and has been dropped.
	delete(f.x.records, store.RecordID{Namespace: 1, Key: saved.Saves[0].Blocks[2].Key})
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}, InvalidBlocks: []uint32{22}}); err != nil {
		t.Fatal(err)
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 0 {
		t.Errorf("offer of %d tokens after a failed load, want none: the engine would ask for ever", got)
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: tokens(20, 5), Computed: 8, Count: 10}}})
	if got := slots(p.Saves); got != "[22]" {
		t.Errorf("saves of slots %s, want [22], the recomputed block", got)
	}
	if f.Stats().FailedLoads != 1 {
		t.Errorf("%d failed loads counted, want 1", f.Stats().FailedLoads)
	}
}

func TestPreemptedRequestStartsAgainWithAnotherTable(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 12)})
	f.save(f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: []uint32{1, 2}, Count: 8}}}), 1)
	f.step(connector.StepRequest{Preempted: []string{"r"}})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 12)}); got != 8 {
		t.Errorf("offer of %d tokens after preemption, want 8 from the store", got)
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: []uint32{7, 8, 9}, Computed: 8, Count: 4}}})
	if got := slots(p.Saves); got != "[9]" {
		t.Errorf("saves of slots %s, want [9]", got)
	}
}

// What the caller says of a request counts, not what it said before.
func TestShorterMatchOfAKnownRequest(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 40), 0, connector.Scope{})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 40)}); got != 36 {
		t.Fatalf("offer of %d tokens, want 36", got)
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 16 {
		t.Errorf("offer of %d tokens for the first 18, want 16", got)
	}
	// Tokens told by a step continue the shorter prompt: the block has their name.
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
		Request: "r", Reset: true, NewBlocks: tokens(50, 5), Computed: 16, Count: 4, From: 18, NewTokens: []uint32{900, 901},
	}}})
	want := f.run("other", append(tokens(0, 18), 900, 901), 0, connector.Scope{})
	if got := slots(p.Saves); got != "[54]" || p.Saves[0].Blocks[0].Key != want.Saves[0].Blocks[0].Key || p.Saves[0].Blocks[0].Proof != want.Saves[0].Blocks[0].Proof {
		t.Errorf("saves of slots %s: want slot 54 under the key of the tokens that were told", got)
	}
}

func TestMissingTokensEndTheSavesInsteadOfShiftingThem(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 6)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: tokens(0, 5), Count: 16, From: 8, NewTokens: tokens(8, 8)}}})
	if !p.Empty() {
		t.Errorf("saves of slots %s though two tokens are unknown", slots(p.Saves))
	}
}

func TestContradictoryStepsAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	for name, m := range map[string]connector.StepRequest{
		"table too short":  {Allocs: []connector.Alloc{{Request: "r", Blocks: []uint32{1}, External: 8}}},
		"computed between": {Allocs: []connector.Alloc{{Request: "r", Blocks: tokens(0, 8), Computed: 3, External: 8}}},
		"too many tokens":  {Scheduled: []connector.Scheduled{{Request: "r", From: connector.MaxTokens, NewTokens: []uint32{1}}}},
		"too many blocks":  {Scheduled: []connector.Scheduled{{Request: "r", NewBlocks: make([]uint32, connector.MaxTokens+1)}}},
	} {
		if _, err := f.Step(t.Context(), &m); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrBadRequest", name, err)
		}
	}
}

func TestOfferThatIsNotTakenIsReleased(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: tokens(0, 5)}}})
	if len(f.x.leases) != 0 {
		t.Error("the lease of a refused offer is held")
	}
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), Computed: 6})
	if len(f.x.leases) != 0 {
		t.Error("the lease of an offer that was replaced by none is held")
	}
}

func TestTokensAreBounded(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxTokens = connector.MaxTokens })
	for i := range 5 {
		f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: make([]uint32, connector.MaxTokens/2), NoLoad: true})
	}
	if n := f.Stats().Requests; n != 2 {
		t.Errorf("%d requests remembered, want the 2 that fit", n)
	}
}

func TestOptOut(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), NoLoad: true}); got != 0 {
		t.Errorf("offer of %d tokens to a request that opted out", got)
	}
	f.match(connector.MatchRequest{Request: "s", Tokens: tokens(100, 18), NoSave: true})
	if p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "s", Reset: true, NewBlocks: tokens(0, 5), Count: 18}}}); !p.Empty() {
		t.Errorf("saves of slots %s of a request that opted out", slots(p.Saves))
	}
}

func TestRequestsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	f := newFixture(t, func(o *Options) {
		o.MaxRequests = 8
		o.Now = func() time.Time { now = now.Add(time.Second); return now }
	})
	for i := range 100 {
		f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: tokens(i, 8)})
	}
	if n := f.Stats().Requests; n != 8 {
		t.Errorf("%d requests remembered, want 8", n)
	}
	if _, err := f.Match(t.Context(), &connector.MatchRequest{Request: "99", From: 8}); err != nil {
		t.Errorf("the newest request was forgotten: %v", err)
	}
	if _, err := f.Match(t.Context(), &connector.MatchRequest{Request: "big", Tokens: make([]uint32, connector.MaxTokens+1)}); !errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("oversized prompt: %v, want ErrBadRequest", err)
	}
}

func TestUnknownIDsInAStepAreHarmless(t *testing.T) {
	f := newFixture(t, nil)
	p := f.step(connector.StepRequest{
		Scheduled: []connector.Scheduled{{Request: "x", Reset: true, NewBlocks: []uint32{1}, Count: 4}},
		Preempted: []string{"y"}, Finished: []string{"z"},
	})
	if !p.Empty() {
		t.Errorf("plan %+v for unknown requests", p)
	}
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"x"}, InvalidBlocks: []uint32{1}}); err != nil {
		t.Error(err)
	}
}
