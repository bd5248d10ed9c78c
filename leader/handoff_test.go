package leader

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// testHandoff reads up to limit blocks of a shard in one call.
type testHandoff struct {
	mu    sync.Mutex
	limit map[connector.Shard]int
	// pins are those in force; calls counts, asked are the blocks asked for.
	pins, calls, asked int
	// during, if not nil, is called while a match waits.
	during func()
}

func (s *testHandoff) Handoff(ctx context.Context, _ connector.NamespaceDigest, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock) ([]connector.HandoffBlock, func()) {
	if _, ok := ctx.Deadline(); !ok {
		panic("reads are waited for without end")
	}
	if s.during != nil {
		s.during()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	s.asked += len(blocks)
	n := len(blocks)
	if limit, ok := s.limit[shard]; ok {
		n = min(n, limit)
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]connector.HandoffBlock, n)
	for i := range out {
		out[i] = connector.HandoffBlock{Offset: uint64(shard)<<32 | uint64(blocks[i].Key[0]), Sum: uint64(blocks[i].Proof[0])}
	}
	s.pins++
	released := false
	return out, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if released {
			panic("released twice")
		}
		released = true
		s.pins--
	}
}

func (s *testHandoff) held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pins
}

// newHandoff is a leader of two ranks whose engine cannot report failed loads.
func newHandoff(t *testing.T, change func(*Options)) (*fixture, *testHandoff) {
	s := &testHandoff{limit: map[connector.Shard]int{}}
	f := newFixture(t, func(o *Options) {
		o.Manifest.TensorParallel = 2
		o.Handoff = s
		if change != nil {
			change(o)
		}
	})
	f.run("seed", tokens(0, 42), 0, connector.Scope{})
	return f, s
}

func (f *fixture) alloc(id string, external int) connector.StepRequest {
	return connector.StepRequest{Allocs: []connector.Alloc{{Request: id, Blocks: f.tables(50, 11), External: external}}}
}

func TestHandoffOffersWhatAllShardsHaveVerifiedAndPinned(t *testing.T) {
	f, s := newHandoff(t, nil)
	s.limit[1] = 6
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 24 {
		t.Fatalf("offer of %d tokens, want the 24 that both ranks have read", got)
	}
	if f.x.held() != 0 || s.held() != 2 {
		t.Errorf("%d leases and %d pins, want none and one a shard", f.x.held(), s.held())
	}
	if p := f.step(f.alloc("r", 20)); len(p.Loads) != 0 {
		t.Errorf("the leader plans %d loads that the engine's side plans itself", len(p.Loads))
	}
	o := f.last.Handoff
	if o == nil || o.First != 0 || len(o.Shards) != 2 {
		t.Fatalf("offer %+v, want both shards from block 0 on", o)
	}
	keys := new(connector.KeyHasher).Append(nil, connector.RootKey(4, connector.Scope{}), tokens(0, 42), 4)
	for _, shard := range o.Shards {
		if len(shard.Blocks) != 6 {
			t.Errorf("shard %d: %d blocks, want the 6 that are offered", shard.Shard, len(shard.Blocks))
		}
		for i, b := range shard.Blocks {
			if want := uint64(shard.Shard)<<32 | uint64(keys[i][0]); b.Offset != want {
				t.Errorf("shard %d block %d is said to lie where another does", shard.Shard, i)
			}
		}
	}
	for range 3 * maxStepsInFlight {
		f.step(connector.StepRequest{})
	}
	if s.held() != 2 {
		t.Errorf("%d pins before the load was reported, want 2: nothing but the report ends them", s.held())
	}
	f.loaded("r")
	if s.held() != 0 {
		t.Errorf("%d pins after the load was reported", s.held())
	}
}

func TestRepeatedMatchGoesOnWhereTheLastStood(t *testing.T) {
	f, s := newHandoff(t, nil)
	s.limit[0], s.limit[1] = 3, 4
	for i, want := range []int{12, 24, 36, 40, 40} {
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != want {
			t.Errorf("match %d offers %d tokens, want %d", i, got, want)
		}
	}
	if s.asked != 10+7+4+1+10+6+2 {
		t.Errorf("%d blocks asked for: some were asked for again", s.asked)
	}
	// Another boundary of the engine's own is another prefix.
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42), Computed: 36}); got != 4 || s.held() != 2 {
		t.Errorf("offer of %d tokens with %d pins, want 4 with 2", got, s.held())
	}
	f.step(connector.StepRequest{Finished: []string{"r"}})
	if s.held() != 0 {
		t.Errorf("%d pins of a finished request", s.held())
	}
}

func TestMinimumOfferHoldsForBlocksReadInTime(t *testing.T) {
	f, s := newHandoff(t, func(o *Options) { o.MinOfferTokens = 12 })
	for limit, want := range map[int]int{2: 0, 3: 12} {
		s.limit[0] = limit
		if got := f.match(connector.MatchRequest{Request: fmt.Sprint(limit), Tokens: tokens(0, 42)}); got != want {
			t.Errorf("%d blocks read: offer of %d tokens, want %d", limit, got, want)
		}
	}
}

func TestShardThatCannotBeReadEndsTheOffer(t *testing.T) {
	f, s := newHandoff(t, nil)
	s.limit[1] = 0 // its rank is on another node
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 0 {
		t.Errorf("offer of %d tokens that one rank could not load", got)
	}
	f.Close()
	if s.held() != 0 {
		t.Errorf("%d pins of a closed leader", s.held())
	}
}

func TestHandoffPinsEndWithTheirRequest(t *testing.T) {
	for name, end := range map[string]func(*fixture){
		"offer not taken": func(f *fixture) { f.step(f.alloc("r", 0)) },
		"computed without it": func(f *fixture) {
			f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(50, 11), Count: 42}}})
		},
		"finished":     func(f *fixture) { f.step(connector.StepRequest{Finished: []string{"r"}}) },
		"other tokens": func(f *fixture) { f.match(connector.MatchRequest{Request: "r", Tokens: tokens(9, 42)}) },
		"fewer tokens told by a step": func(f *fixture) {
			f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", From: 3, NewTokens: tokens(900, 9)}}})
		},
		"opted out": func(f *fixture) { f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42), NoLoad: true}) },
		"not ready": func(f *fixture) {
			f.SetReady(false)
			f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)})
		},
		"closed": func(f *fixture) { f.Close() },
	} {
		f, s := newHandoff(t, nil)
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 40 {
			t.Fatalf("offer of %d tokens, want 40", got)
		}
		if end(f); s.held() != 0 || f.x.held() != 0 {
			t.Errorf("%s: %d pins and %d leases are held", name, s.held(), f.x.held())
		}
	}
}

// The worker of an engine that overlaps its steps may still be copying when the scheduler
// hears that the request was aborted.
func TestAbortDuringAHandoffKeepsTheMemoryUntilReportedOrStepsHavePassed(t *testing.T) {
	for _, reported := range []bool{true, false} {
		f, s := newHandoff(t, nil)
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)})
		f.step(f.alloc("r", 40))
		f.step(connector.StepRequest{Finished: []string{"r"}})
		if s.held() != 2 {
			t.Fatalf("%d pins right after the abort, want 2", s.held())
		}
		if reported {
			f.loaded("r")
		} else {
			for range maxStepsInFlight + 1 {
				f.step(connector.StepRequest{})
			}
		}
		if s.held() != 0 {
			t.Errorf("%d pins are left", s.held())
		}
	}
}

func TestDiscardedHandoffsAreBounded(t *testing.T) {
	f, s := newHandoff(t, nil)
	for range 3 * maxLoads { // offered, allocated, never consumed nor reported
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 40 {
			t.Fatalf("offer of %d tokens, want 40", got)
		}
		f.step(f.alloc("r", 40))
	}
	if n := s.held(); n > 2*(maxLoads+maxStepsInFlight+2) {
		t.Errorf("%d pins are held by loads that were thrown away", n)
	}
	f.Close()
	if s.held() != 0 {
		t.Errorf("%d pins of a closed leader", s.held())
	}
}

func TestNoLockIsHeldDuringTheReadsOfAHandoff(t *testing.T) {
	for name, during := range map[string]func(f *fixture){
		"other request": func(f *fixture) { f.match(connector.MatchRequest{Request: "other", Tokens: tokens(500, 9)}) },
		"same request": func(f *fixture) {
			if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 0 {
				f.Errorf("second match of a request offers %d tokens while the first waits", got)
			}
		},
		"finished": func(f *fixture) { f.step(connector.StepRequest{Finished: []string{"r"}}) },
		"finished, and its memory used by another": func(f *fixture) {
			f.step(connector.StepRequest{Finished: []string{"r"}})
			if got := f.match(connector.MatchRequest{Request: "other", Tokens: tokens(0, 42)}); got != 40 {
				f.Errorf("offer of %d tokens for another request, want 40", got)
			}
			f.step(connector.StepRequest{Finished: []string{"other"}})
		},
		"finished, and back": func(f *fixture) {
			f.step(connector.StepRequest{Finished: []string{"r"}})
			if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 40 {
				f.Errorf("offer of %d tokens for the new request of that name, want 40", got)
			}
		},
		"other tokens": func(f *fixture) {
			f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", From: 0, NewTokens: tokens(7, 42)}}})
		},
		"closed": func(f *fixture) { f.Close() },
	} {
		f, s := newHandoff(t, nil)
		var began atomic.Bool
		s.during = func() {
			if !began.Swap(true) {
				during(f)
			}
		}
		got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)})
		want := 0
		if name == "other request" || name == "same request" {
			want = 40
		}
		if got != want {
			t.Errorf("%s: offer of %d tokens, want %d", name, got, want)
		}
		s.during = nil
		f.step(connector.StepRequest{Finished: []string{"r"}})
		if s.held() != 0 || f.x.held() != 0 {
			t.Errorf("%s: %d pins and %d leases are held", name, s.held(), f.x.held())
		}
	}
}

// Requests are forgotten, and their memory used by others, while matches wait for reads.
func TestCallsAtOnceOfferWhatIsPinnedAndLeaveNothingBehind(t *testing.T) {
	f, s := newHandoff(t, func(o *Options) { o.MaxRequests = 4 })
	s.during = runtime.Gosched
	var all sync.WaitGroup
	for g := range 4 {
		r := seed.Random(t, g)
		all.Go(func() {
			for range 500 {
				id, begin := fmt.Sprint(r.IntN(5)), r.IntN(2)
				var step connector.StepRequest
				switch r.IntN(8) {
				default:
					o, err := f.Match(t.Context(), &connector.MatchRequest{Request: id, Tokens: tokens(begin, 10+r.IntN(33))})
					if err != nil || o.Tokens > 0 && (len(o.Handoff.Shards[0].Blocks) != o.Tokens/4 || len(o.Handoff.Shards[1].Blocks) != o.Tokens/4) {
						t.Errorf("offer %+v, %v", o, err)
					}
				case 0:
					step = f.alloc(id, 4*r.IntN(11))
				case 1:
					step.Finished = []string{id}
				case 2:
					step.Scheduled = []connector.Scheduled{{Request: id, Reset: true, NewBlocks: f.tables(50, 11), Count: 42, From: begin, NewTokens: tokens(0, 9)}}
				case 3:
					if err := f.Loaded(t.Context(), &connector.LoadedReport{Done: []string{id}}); err != nil {
						t.Error(err)
					}
				}
				if _, err := f.Step(t.Context(), &step); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	f.Close()
	if s.held() != 0 || f.x.held() != 0 {
		t.Errorf("%d pins and %d leases of a closed leader", s.held(), f.x.held())
	}
}

func TestHandoffOfAHybridCanBeTakenInAnyPart(t *testing.T) {
	f, _ := newHandoff(t, func(o *Options) {
		o.Manifest = testManifest(connector.Group{Layers: 1}, connector.Group{Layers: 1, Window: 16})
	})
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 42)}); got != 40 {
		t.Fatalf("offer of %d tokens, want 40", got)
	}
	step := f.alloc("r", 20)
	f.step(step)
	var window []uint32
	for s := range step.Allocs[0].Stretches(f.opts.Manifest) {
		if s.Group == 1 {
			window = append(window, s.Slots...)
		}
		for _, shard := range f.opts.Manifest.GroupShards(s.Group) {
			offered := slices.IndexFunc(f.last.Handoff.Shards, func(h connector.HandoffShard) bool { return h.Shard == shard })
			if offered < 0 || s.First < f.last.Handoff.First || s.First+len(s.Slots) > f.last.Handoff.First+len(f.last.Handoff.Shards[offered].Blocks) {
				t.Errorf("blocks [%d, %d) of shard %d are not offered", s.First, s.First+len(s.Slots), shard)
			}
		}
	}
	if !slices.Equal(window, tokens(1051, 4)) {
		t.Errorf("window group loads slots %v, want those of boundary 20", window)
	}
}
