package leader

import (
	"reflect"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// tiersOf matches with Tiers, and returns what lies where.
func (f *fixture) tiersOf(n int, id string) map[string]int {
	f.Helper()
	f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, n), Tiers: true})
	out := map[string]int{}
	for _, t := range f.last.Tiers {
		if t.Tokens > 0 {
			out[t.Tier] += t.Tokens
		}
	}
	return out
}

func TestOfferSaysWhereItsTokensLie(t *testing.T) {
	f, x := newPriced(t, nil)
	x.speeds.DiskBytesPerS = 1e9
	for _, k := range f.keys(tokens(0, 82))[3:8] {
		x.host[k] = true
	}
	want := map[string]int{"host": 20, "disk": 60}
	if got := f.tiersOf(82, "r"); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if f.offered(82, "s"); f.last.Tiers != (connector.Offer{}.Tiers) {
		t.Errorf("told without being asked: %v", f.last.Tiers)
	}
	x.speeds.DiskBytesPerS = 1
	if got := f.tiersOf(82, "t"); len(got) != 0 || f.last.Refused != 80 {
		t.Errorf("%v of an offer of nothing, %d tokens refused; want 80 refused", got, f.last.Refused)
	}
}

// A block of two layer groups comes from the slower of their tiers.
func TestTierOfABlockIsTheSlowestThatItNeeds(t *testing.T) {
	f, x := newPriced(t, hybrid)
	x.speeds.DiskBytesPerS = 1e9
	for _, k := range f.keys(tokens(0, 82))[:18] {
		x.host[k] = true
	}
	want := map[string]int{"host": 72, "disk": 8}
	if got := f.tiersOf(82, "r"); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestTiersWithoutLevelsAreUnknown(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	if got := f.tiersOf(18, "r"); len(got) != 0 || f.last.Tokens != 16 {
		t.Errorf("%v of %d tokens", got, f.last.Tokens)
	}
}

// More tiers than are told apart: the last stands for the rest, and the sum stays right.
func TestTiersBeyondTheBoundCountAsTheLast(t *testing.T) {
	x := &testTiers{speeds: speeds{DiskBytesPerS: 1e9}}
	f := newFixture(t, func(o *Options) {
		for range connector.MaxTiers {
			o.Levels = append(o.Levels, x.levels()[0])
		}
		o.Levels = append(o.Levels, &testLevel{name: "far", speed: func() store.Speed { return store.Speed{} }})
	})
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	if got := f.tiersOf(18, "r"); got["host"] != 16 {
		t.Errorf("%v, want 16 tokens of the last that is told apart", got)
	}
}

func TestTraceIsKeptWithItsRequest(t *testing.T) {
	f := newFixture(t, nil)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 8), Trace: trace})
	f.match(connector.MatchRequest{Request: "s", Tokens: tokens(0, 8)})
	if f.Trace("r") != trace || f.Trace("s") != "" || f.Trace("unknown") != "" {
		t.Errorf("traces %q, %q and %q", f.Trace("r"), f.Trace("s"), f.Trace("unknown"))
	}
	f.step(connector.StepRequest{Finished: []string{"r"}})
	f.match(connector.MatchRequest{Request: "again", Tokens: tokens(0, 8)}) // in the memory of the first
	if f.Trace("r") != "" || f.Trace("again") != "" {
		t.Errorf("traces %q and %q of an ended request", f.Trace("r"), f.Trace("again"))
	}
}

func TestStepTellsItsSavesIfAsked(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	saves := func(computed, count int, tell bool) []connector.PlannedSave {
		s := connector.Scheduled{Request: "r", Computed: computed, Count: count}
		if computed == 0 {
			s.Reset, s.NewBlocks = true, [][]uint32{{1, 2, 3, 4, 5}}
		}
		reply, err := f.Step(t.Context(), &connector.StepRequest{Scheduled: []connector.Scheduled{s}, TellSaves: tell})
		if err != nil {
			t.Fatal(err)
		}
		return reply.Saves
	}
	if got, want := saves(0, 9, true), []connector.PlannedSave{{Request: "r", Count: 2}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := saves(9, 4, false); got != nil {
		t.Errorf("told without being asked: %+v", got)
	}
	if got, want := saves(13, 4, true), []connector.PlannedSave{{Request: "r", First: 3, Count: 1}}; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := saves(17, 1, true); got != nil {
		t.Errorf("%+v in a step that fills no block", got)
	}
}

// The list of saves gets the room that the plan leaves.
func TestSavesAreToldWhileTheAnswerHasRoom(t *testing.T) {
	for _, tc := range []struct{ more, told int }{{0, 0}, {savedEntryBytes, 0}, {savedEntryBytes + 1, 1}} {
		f := newFixture(t, nil)
		f.room.limit = connector.MaxTransferBytes + 2*connector.PlanBlockBytes + tc.more
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 8)})
		s := connector.Scheduled{Request: "r", Reset: true, NewBlocks: [][]uint32{{1, 2}}, Count: 8}
		reply, err := f.Step(t.Context(), &connector.StepRequest{Scheduled: []connector.Scheduled{s}, TellSaves: true})
		if err != nil {
			t.Fatal(err)
		}
		plan, err := connector.ParsePlan(reply.Metadata)
		if err != nil || slots(plan.Saves) != "[1 2]" || len(reply.Saves) != tc.told {
			t.Errorf("%d bytes more: saves of slots %s, %d told, %v; want both blocks and %d told", tc.more, slots(plan.Saves), len(reply.Saves), err, tc.told)
		}
	}
}
