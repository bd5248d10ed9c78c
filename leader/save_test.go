package leader

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

func TestSavesFollowChunkedPrefillAndDecode(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 10)})
	for i, tc := range []struct {
		s    connector.Scheduled
		want string
	}{
		{connector.Scheduled{Reset: true, NewBlocks: [][]uint32{{5, 6}}, Count: 6}, "[5]"},
		{connector.Scheduled{NewBlocks: [][]uint32{{7}}, Computed: 6, Count: 4}, "[6]"},
		{connector.Scheduled{Computed: 10, Count: 1, From: 10, NewTokens: []uint32{90}}, "[]"},
		{connector.Scheduled{Computed: 11, Count: 1, From: 11, NewTokens: []uint32{91}}, "[7]"},
		{connector.Scheduled{NewBlocks: [][]uint32{{8}}, Computed: 12, Count: 1, From: 12, NewTokens: []uint32{92}}, "[]"},
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
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{{1, 2}}, Count: 8}}})
	if got := slots(p.Saves); got != "[1]" {
		t.Errorf("saves of slots %s, want [1]", got)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 8, Count: 1, From: 7, NewTokens: []uint32{7, 8}}}})
	if got := slots(p.Saves); got != "[2]" {
		t.Errorf("saves of slots %s once the token is known, want [2]", got)
	}
}

// An engine that loads blocks in the step that computes those after them (a synchronous load) has
// computed on garbage if the load fails.
func TestNothingIsSavedBeforeItsLoadIsReported(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: append(tokens(0, 16), 70, 71, 72, 73, 74)})
	p := f.step(connector.StepRequest{
		Allocs:    []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(20, 6)}, External: 16}},
		Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(20, 6)}, Computed: 16, Count: 5}},
	})
	if got := slots(p.Saves); got != "[]" {
		t.Errorf("saves of slots %s beside the load", got)
	}
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}}); err != nil {
		t.Fatal(err)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 21, Count: 1, From: 21, NewTokens: []uint32{75}}}})
	if got := slots(p.Saves); got != "[24]" {
		t.Errorf("saves of slots %s once the load was reported, want [24]", got)
	}
}

func TestSharedPrefixIsSavedOnceAStep(t *testing.T) {
	f := newFixture(t, nil)
	for _, id := range []string{"a", "b"} {
		f.match(connector.MatchRequest{Request: id, Tokens: append(tokens(0, 8), tokens(len(id)*100, 4)...)})
	}
	f.match(connector.MatchRequest{Request: "b", Tokens: append(tokens(0, 8), 1, 2, 3, 4)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{
		{Request: "a", Reset: true, NewBlocks: [][]uint32{{1, 2, 3}}, Count: 12},
		{Request: "b", Reset: true, NewBlocks: [][]uint32{{4, 5, 6}}, Count: 12},
	}})
	if got := slots(p.Saves); got != "[1 2 3 6]" {
		t.Errorf("saves of slots %s, want [1 2 3 6]", got)
	}
}

func TestFailedLoadIsNotOfferedAgainAndIsSavedAgain(t *testing.T) {
	f := newFixture(t, nil)
	saved := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(20, 5)}, External: 16}}})
	// Block 2 (slot 22) was corrupt and has been dropped.
	delete(f.x.records, store.RecordID{Namespace: testNamespace, Key: saved.Saves[0].Blocks[2].Key})
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}, InvalidBlocks: []uint32{22}}); err != nil {
		t.Fatal(err)
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 0 {
		t.Errorf("offer of %d tokens after a failed load, want none: the engine would ask without end", got)
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(20, 5)}, Computed: 8, Count: 10}}})
	if got := slots(p.Saves); got != "[22]" {
		t.Errorf("saves of slots %s, want [22], the recomputed block", got)
	}
	if f.Stats().FailedLoads != 1 {
		t.Errorf("%d failed loads counted, want 1", f.Stats().FailedLoads)
	}
}

// A load ends at its first failed block, while a read of a later one still goes on. A save of that
// one is left out, since its record is there; then the read finds it damaged and drops it.
func TestBlockDroppedAfterItsSaveWasPlannedIsSavedByTheNextRequest(t *testing.T) {
	f := newFixture(t, nil)
	saved := f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(20, 5)}, External: 16}}})
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}, InvalidBlocks: []uint32{21, 22, 23}}); err != nil {
		t.Fatal(err)
	}
	again := connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(20, 5)}, Computed: 4, Count: 14}}}
	if got := slots(f.step(again).Saves); got != "[21 22 23]" {
		t.Fatalf("saves of slots %s, want [21 22 23], which failed", got)
	}
	delete(f.x.records, store.RecordID{Namespace: testNamespace, Key: saved.Saves[0].Blocks[2].Key})
	f.match(connector.MatchRequest{Request: "next", Tokens: tokens(0, 18)})
	next := connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "next", Reset: true, NewBlocks: [][]uint32{tokens(30, 5)}, Computed: 8, Count: 10}}}
	if got := slots(f.step(next).Saves); got != "[32]" {
		t.Errorf("saves of slots %s, want [32], which is gone", got)
	}
}

// A rank on another node may lack what this node's store has of all ranks.
func TestBlockThatARankElsewhereLacksIsSavedAgain(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(20, 5)}, External: 16}}})
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"r"}, InvalidBlocks: []uint32{23, 21}}); err != nil {
		t.Fatal(err)
	}
	again := connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(20, 5)}, Computed: 4, Count: 14}}}
	if got := slots(f.step(again).Saves); got != "[21 23]" {
		t.Errorf("saves of slots %s, want [21 23], which failed", got)
	}
	if got := slots(f.step(again).Saves); got != "[]" {
		t.Errorf("saves of slots %s, want none a second time", got)
	}
}

func TestPreemptedRequestStartsAgainWithAnotherTable(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 12)})
	f.save(f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{{1, 2}}, Count: 8}}}))
	f.step(connector.StepRequest{Preempted: []string{"r"}})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 12)}); got != 8 {
		t.Errorf("offer of %d tokens after preemption, want 8 from the store", got)
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{{7, 8, 9}}, Computed: 8, Count: 4}}})
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
		Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(50, 5)}, Computed: 16, Count: 4, From: 18, NewTokens: []uint32{900, 901},
	}}})
	f.clock.advance(time.Minute)
	want := f.run("other", append(tokens(0, 18), 900, 901), 0, connector.Scope{})
	if got := slots(p.Saves); got != "[54]" || p.Saves[0].Blocks[0].Key != want.Saves[0].Blocks[0].Key || p.Saves[0].Blocks[0].Proof != want.Saves[0].Blocks[0].Proof {
		t.Errorf("saves of slots %s: want slot 54 under the key of the tokens that were told", got)
	}
}

func TestMissingTokensEndTheSavesInsteadOfShiftingThem(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 6)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: [][]uint32{tokens(0, 5)}, Count: 16, From: 8, NewTokens: tokens(8, 8)}}})
	if !p.Empty() {
		t.Errorf("saves of slots %s though two tokens are unknown", slots(p.Saves))
	}
}

func TestContradictoryStepsAreRefused(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	const beyond = connector.MaxTokens + 4
	table := [][]uint32{tokens(0, 8)}
	for name, m := range map[string]connector.StepRequest{
		"table too short":       {Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{{1}}, External: 8}}},
		"no table":              {Allocs: []connector.Alloc{{Request: "r", External: 8}}},
		"too many tables":       {Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{table[0], table[0]}, External: 8}}},
		"too large a table":     {Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{make([]uint32, beyond)}, External: 8}}},
		"computed between":      {Allocs: []connector.Alloc{{Request: "r", Blocks: table, Computed: 3, External: 8}}},
		"computed below 0":      {Allocs: []connector.Alloc{{Request: "r", Blocks: table, Computed: -4, External: 8}}},
		"computed beyond":       {Allocs: []connector.Alloc{{Request: "r", Blocks: table, Computed: beyond, External: 8}}},
		"external below 0":      {Allocs: []connector.Alloc{{Request: "r", Blocks: table, External: -1}}},
		"external beyond":       {Allocs: []connector.Alloc{{Request: "r", Blocks: table, External: beyond}}},
		"hits of other groups":  {Allocs: []connector.Alloc{{Request: "r", Blocks: table, External: 8, GroupComputed: []int{0, 0}}}},
		"group's hit below 0":   {Allocs: []connector.Alloc{{Request: "r", Blocks: table, External: 8, GroupComputed: []int{-1}}}},
		"group's hit beyond":    {Allocs: []connector.Alloc{{Request: "r", Blocks: table, External: 8, GroupComputed: []int{9}}}},
		"too many tokens":       {Scheduled: []connector.Scheduled{{Request: "r", From: connector.MaxTokens, NewTokens: []uint32{1}}}},
		"tokens from below 0":   {Scheduled: []connector.Scheduled{{Request: "r", From: -1, NewTokens: []uint32{1}}}},
		"nothing from beyond":   {Scheduled: []connector.Scheduled{{Request: "r", From: beyond}}},
		"scheduled below 0":     {Scheduled: []connector.Scheduled{{Request: "r", Computed: -1}}},
		"scheduled beyond":      {Scheduled: []connector.Scheduled{{Request: "r", Computed: beyond}}},
		"count below 0":         {Scheduled: []connector.Scheduled{{Request: "r", Count: -1}}},
		"count beyond":          {Scheduled: []connector.Scheduled{{Request: "r", Count: beyond}}},
		"blocks of more groups": {Scheduled: []connector.Scheduled{{Request: "r", NewBlocks: [][]uint32{{1}, {1}}}}},
		"too many blocks":       {Scheduled: []connector.Scheduled{{Request: "r", NewBlocks: [][]uint32{make([]uint32, beyond)}}}},
	} {
		if _, err := f.Step(t.Context(), &m); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("%s: %v, want ErrBadRequest", name, err)
		}
	}
	// Of an offer that was not taken nothing is looked at: engines tell what they have.
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Computed: 3}}})
}

func TestOfferThatIsNotTakenIsReleased(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(0, 5)}}}})
	if f.x.held() != 0 {
		t.Error("the lease of a refused offer is held")
	}
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), Computed: 6})
	if f.x.held() != 0 {
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

// Tokens that come after a request's first match count, and so do its blocks.
func TestWhatRequestsGrowByIsBounded(t *testing.T) {
	const half = connector.MaxTokens / 2
	for name, grow := range map[string]func(f *fixture, id string){
		"match": func(f *fixture, id string) {
			f.match(connector.MatchRequest{Request: id, From: 1, Tokens: make([]uint32, half), NoLoad: true})
		},
		"step": func(f *fixture, id string) {
			f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, From: 1, NewTokens: make([]uint32, half)}}})
		},
		"block table": func(f *fixture, id string) {
			f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Reset: true, NewBlocks: [][]uint32{make([]uint32, half)}}}})
		},
		"allocation": func(f *fixture, id string) {
			f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: id, Blocks: [][]uint32{make([]uint32, half)}, External: 4}}})
		},
		"load": func(f *fixture, id string) {
			f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: id, Blocks: [][]uint32{make([]uint32, half/4)}, External: half}}})
		},
		"spans": func(f *fixture, id string) {
			spans := make([]connector.Span, connector.MaxSpans)
			for i := range spans {
				spans[i] = connector.Span{Start: i, End: i + 1, ID: make([]byte, connector.MaxSpanIDBytes)}
			}
			for i := range 2 * half / (connector.MaxSpans * connector.MaxSpanIDBytes / 4) {
				f.match(connector.MatchRequest{Request: fmt.Sprint(id, "-", i), Tokens: []uint32{1}, Spans: spans, NoLoad: true})
			}
		},
	} {
		f := newFixture(t, func(o *Options) { o.MaxTokens = connector.MaxTokens })
		for i := range 5 {
			f.match(connector.MatchRequest{Request: fmt.Sprint(i), Tokens: []uint32{1}})
			grow(f, fmt.Sprint(i))
			size := 0
			for r := f.requests.head.next; r != &f.requests.head; r = r.next {
				size += r.size()
			}
			if size > connector.MaxTokens {
				t.Errorf("%s: %d requests hold %d numbers, %d are allowed", name, f.Stats().Requests, size, connector.MaxTokens)
				break
			}
		}
		if f.requests.oldest() == nil {
			t.Errorf("%s: the newest request was forgotten", name)
		}
		for r := f.requests.oldest(); r != nil; r = f.requests.oldest() {
			f.forget(r)
		}
		if f.requests.size != 0 {
			t.Errorf("%s: %d numbers are counted of no request", name, f.requests.size)
		}
	}
}

func TestOptOut(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), NoLoad: true}); got != 0 {
		t.Errorf("offer of %d tokens to a request that opted out", got)
	}
	f.match(connector.MatchRequest{Request: "s", Tokens: tokens(100, 18), NoSave: true})
	if p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "s", Reset: true, NewBlocks: [][]uint32{tokens(0, 5)}, Count: 18}}}); !p.Empty() {
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

// A request that decodes for long is in use, though nobody matches it.
func TestRunningRequestsAreNotForgottenForWaitingOnes(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MaxRequests = 2 })
	f.match(connector.MatchRequest{Request: "runs", Tokens: tokens(0, 6)})
	f.match(connector.MatchRequest{Request: "waits", Tokens: tokens(100, 6)})
	f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "runs", Reset: true, NewBlocks: f.tables(0, 2), Count: 6}}})
	f.match(connector.MatchRequest{Request: "comes", Tokens: tokens(200, 6)})
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "runs", Computed: 6, Count: 2, From: 6, NewTokens: tokens(6, 2)}}})
	if got := slots(p.Saves); got != "[1]" {
		t.Errorf("saves of slots %s, want [1]", got)
	}
}

func TestMemoryKeptForNewRequestsIsBounded(t *testing.T) {
	f := newFixture(t, nil)
	end := func(id string, n int) {
		f.match(connector.MatchRequest{Request: id, Tokens: make([]uint32, n), NoLoad: true})
		f.step(connector.StepRequest{Finished: []string{id}})
	}
	end("large", maxIdleSize+1)
	if n := len(f.requests.idle); n != 0 {
		t.Error("the memory of a large request is kept")
	}
	var s connector.StepRequest
	for i := range 2 * maxIdleRequests {
		s.Finished = append(s.Finished, fmt.Sprint(i))
		f.match(connector.MatchRequest{Request: s.Finished[i], Tokens: tokens(0, 4)})
	}
	if f.step(s); len(f.requests.idle) != maxIdleRequests {
		t.Errorf("the memory of %d requests is kept, want that of %d", len(f.requests.idle), maxIdleRequests)
	}
}

func TestUnknownIDsInAStepAreHarmless(t *testing.T) {
	f := newFixture(t, nil)
	p := f.step(connector.StepRequest{
		Scheduled: []connector.Scheduled{{Request: "x", Reset: true, NewBlocks: [][]uint32{{1}}, Count: 4}},
		Preempted: []string{"y"}, Finished: []string{"z"},
	})
	if !p.Empty() {
		t.Errorf("plan %+v for unknown requests", p)
	}
	if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{"x"}, InvalidBlocks: []uint32{1}}); err != nil {
		t.Error(err)
	}
}
