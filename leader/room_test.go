package leader

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// frameOf is the size of the answer to a step as it is sent.
func frameOf(r *connector.StepReply) int { return len(wire.AppendStepReply(nil, r)) }

// Defect 16: what is offered is planned, whatever the size of the prompt, and the answer
// fits into a frame.
func TestOfferIsNoMoreThanAPlanHolds(t *testing.T) {
	for _, tc := range []struct {
		name               string
		prompt, bs, groups int
		full               bool
	}{
		{name: "400k tokens, block size 1", prompt: 400_000, bs: 1, groups: 1},
		{name: "2M tokens, 3 groups of 16", prompt: connector.MaxTokens, bs: 16, groups: 3},
		{name: "1M tokens, 6 groups of 16", prompt: 1 << 20, bs: 16, groups: 6},
		{name: "1M tokens, 1 group of 16", prompt: 1 << 20, bs: 16, groups: 1, full: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newFullLeader(t, func(o *Options) {
				o.Manifest = testManifest(make([]connector.Group, tc.groups)...)
				for g := range o.Manifest.Groups {
					o.Manifest.Groups[g].Layers = 1
				}
				o.Manifest.BlockSize, o.Levels = tc.bs, nil
			})
			toks := tokens(0, tc.prompt)
			offer, err := l.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: toks})
			if err != nil || offer.Tokens == 0 {
				t.Fatal(offer, err)
			}
			if whole := (tc.prompt - 1) / tc.bs * tc.bs; tc.full != (offer.Tokens == whole) {
				t.Errorf("offer of %d tokens of %d", offer.Tokens, whole)
			}
			table := tokens(0, (tc.prompt+tc.bs-1)/tc.bs)
			tables := slices.Repeat([][]uint32{table}, tc.groups)
			r, err := l.Step(t.Context(), &connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: tables, External: offer.Tokens}}})
			if err != nil {
				t.Fatal(err)
			}
			n := frameOf(&r)
			if n > wire.MaxBodyBytes {
				t.Errorf("the answer takes %d bytes, a frame has %d", n, wire.MaxBodyBytes)
			}
			if !tc.full && n < wire.MaxBodyBytes*99/100 {
				t.Errorf("the answer takes %d bytes only: more could have been offered", n)
			}
			p, err := connector.ParsePlan(r.Metadata)
			if err != nil {
				t.Fatal(err)
			}
			blocks := 0
			for _, x := range p.Loads[0].Transfers {
				blocks += len(x.Blocks)
			}
			if want := tc.groups * offer.Tokens / tc.bs; blocks != want || len(p.Loads[0].Lost) > 0 {
				t.Errorf("%d blocks are loaded and %d lost, %d were offered", blocks, len(p.Loads[0].Lost), want)
			}
		})
	}
}

// Defect 16: many requests of one step share its plan, each with what it was offered.
func TestOffersOfOneStepFitOnePlan(t *testing.T) {
	l := newFullLeader(t, func(o *Options) { o.Levels, o.MaxRequests = nil, 1000 })
	l.room.limit = 60_000
	var allocs []connector.Alloc
	promised, refused := 0, 0
	for i := range 40 {
		id := fmt.Sprint(strings.Repeat("x", 100), i)
		toks := tokens(1000*i, 16*50+1)
		var offer connector.Offer
		for range 2 { // as often as it likes
			var err error
			if offer, err = l.Match(t.Context(), &connector.MatchRequest{Request: id, Tokens: toks}); err != nil {
				t.Fatal(err)
			}
		}
		if offer.Tokens == 0 {
			refused++
			continue
		}
		promised += offer.Tokens / 16
		allocs = append(allocs, connector.Alloc{Request: id, Blocks: [][]uint32{tokens(0, 51)}, External: offer.Tokens})
	}
	if refused == 0 || promised < 900 {
		t.Errorf("%d requests refused, %d blocks promised", refused, promised)
	}
	r, err := l.Step(t.Context(), &connector.StepRequest{Allocs: allocs})
	if err != nil {
		t.Fatal(err)
	}
	p, err := connector.ParsePlan(r.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	planned := 0
	for i := range p.Loads {
		for _, x := range p.Loads[i].Transfers {
			planned += len(x.Blocks)
		}
	}
	if planned != promised || frameOf(&r) > 60_000+frameHeadroom || l.Stats().LostLoads != 0 {
		t.Errorf("%d blocks planned of %d promised, in %d bytes; %d loads lost", planned, promised, frameOf(&r), l.Stats().LostLoads)
	}
	// The next step has room again.
	if o, err := l.Match(t.Context(), &connector.MatchRequest{Request: "late", Tokens: tokens(77, 801)}); err != nil || o.Tokens != 800 {
		t.Errorf("%+v, %v", o, err)
	}
}

// Offers that an engine takes steps later may not fit together: the load that does not fails,
// told in a few bytes.
func TestLoadWithoutRoomIsLostAndTold(t *testing.T) {
	l := newFullLeader(t, func(o *Options) { o.Levels = nil })
	l.room.limit = 10_000
	var allocs []connector.Alloc
	for i := range 3 {
		id := fmt.Sprint("r", i)
		o, err := l.Match(t.Context(), &connector.MatchRequest{Request: id, Tokens: tokens(1000*i, 16*100+1)})
		if err != nil || o.Tokens != 1600 {
			t.Fatal(o, err)
		}
		allocs = append(allocs, connector.Alloc{Request: id, Blocks: [][]uint32{tokens(200*i, 101)}, External: o.Tokens})
		if _, err := l.Step(t.Context(), new(connector.StepRequest)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := l.Step(t.Context(), &connector.StepRequest{Allocs: allocs})
	if err != nil {
		t.Fatal(err)
	}
	p, err := connector.ParsePlan(r.Metadata)
	if err != nil {
		t.Fatal(err)
	}
	lost := 0
	for i := range p.Loads {
		if want := tokens(200*i, 100); len(p.Loads[i].Lost) > 0 {
			lost++
			if !slices.Equal(p.Loads[i].Lost, want) || len(p.Loads[i].Transfers) > 0 {
				t.Errorf("load %d loses %d slots and has %d transfers", i, len(p.Loads[i].Lost), len(p.Loads[i].Transfers))
			}
		}
		if !slices.Equal(r.Loads[i].Blocks, tokens(200*i, 100)) {
			t.Errorf("load %d fills %v", i, r.Loads[i].Blocks)
		}
	}
	if lost != 2 || l.Stats().LostLoads != 2 || frameOf(&r) > 10_000+frameHeadroom {
		t.Errorf("%d loads lost, answer of %d bytes", lost, frameOf(&r))
	}
}

// Saves beyond a plan go on in the request's next steps.
func TestSavesBeyondAPlanFollow(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Manifest = testManifest(connector.Group{Layers: 1}, connector.Group{Layers: 1}) })
	f.room.limit = 2000
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 400)})
	s := connector.Scheduled{Request: "r", Reset: true, NewBlocks: f.tables(0, 110), Count: 400}
	saved := map[string]int{}
	steps := 0
	for ; steps < 100; steps++ {
		r, err := f.Step(f.Context(), &connector.StepRequest{Scheduled: []connector.Scheduled{s}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Metadata) == 0 {
			break
		}
		if n := frameOf(&r); n > 2000+frameHeadroom {
			t.Errorf("step %d: the answer takes %d bytes", steps, n)
		}
		p, err := connector.ParsePlan(r.Metadata)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range p.Saves {
			for _, b := range x.Blocks {
				saved[fmt.Sprint(x.Group, b.Key)]++
			}
		}
		s = connector.Scheduled{Request: "r", Computed: 400 + steps, Count: 1}
	}
	if len(saved) != 200 || steps < 5 {
		t.Errorf("%d blocks saved in %d steps, want 200", len(saved), steps)
	}
	for b, n := range saved {
		if n != 1 {
			t.Errorf("block %s is saved %d times", b, n)
		}
	}
}

// instantStaging has everything at once.
type instantStaging struct{}

func (instantStaging) Handoff(_ context.Context, _ connector.NamespaceDigest, _ connector.Shard, _ connector.Key, blocks []connector.PlanBlock) ([]connector.HandoffBlock, func()) {
	return make([]connector.HandoffBlock, len(blocks)), nil
}

// With handoff the answer to match lists the blocks of all shards.
func TestHandoffOfferFitsAFrame(t *testing.T) {
	o := Options{Manifest: testManifest(), Handoff: instantStaging{}}
	o.Manifest.BlockSize, o.Manifest.TensorParallel = 1, 8
	l, err := New(o, new(fullIndex))
	if err != nil {
		t.Fatal(err)
	}
	m := connector.MatchRequest{Request: "r", Tokens: tokens(0, 200_000)}
	offer, err := l.Match(t.Context(), &m)
	if err != nil || offer.Tokens == 0 || offer.Tokens == 199_999 {
		t.Fatalf("%d tokens, %v", offer.Tokens, err)
	}
	if n := len(wire.AppendOffer(nil, offer)); n > wire.MaxBodyBytes || n < wire.MaxBodyBytes*99/100 {
		t.Errorf("the answer to match takes %d bytes, a frame has %d", n, wire.MaxBodyBytes)
	}
	r, err := l.Step(t.Context(), &connector.StepRequest{
		Allocs:    []connector.Alloc{{Request: "r", Blocks: [][]uint32{tokens(0, 200_000)}, External: offer.Tokens}},
		Scheduled: []connector.Scheduled{{Request: "r", Computed: offer.Tokens, Count: 10}},
	})
	if err != nil || len(r.Loads) != 0 {
		t.Fatalf("%d loads, %v: want the saves alone", len(r.Loads), err)
	}
}

func TestScopeOfARequestIsInItsPlans(t *testing.T) {
	f := newFixture(t, nil)
	scope := connector.Scope{Salt: "tenant", LoRA: "adapter"}
	p := f.run("seed", tokens(0, 18), 0, scope)
	if len(p.Saves) != 1 || p.Saves[0].Scope != scope.Digest() {
		t.Errorf("saves %+v, want them of scope %x", p.Saves, scope.Digest())
	}
	if p := f.run("plain", tokens(0, 18), 0, connector.Scope{}); len(p.Saves) != 1 || p.Saves[0].Scope != (connector.ScopeDigest{}) {
		t.Errorf("saves %+v, want them of no scope", p.Saves)
	}
}
