package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
)

func TestNothingIsOfferedOrSavedWhileARankIsMissing(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.SetReady(false)
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 22)}); got != 0 || f.Stats().NotReady != 1 {
		t.Errorf("offer of %d tokens that a rank cannot load", got)
	}
	p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(30, 6), Count: 21}}})
	if !p.Empty() {
		t.Errorf("saves of slots %s that a rank would lack", slots(p.Saves))
	}
	f.SetReady(true)
	if got := f.match(connector.MatchRequest{Request: "s", Tokens: tokens(0, 18)}); got != 16 {
		t.Errorf("offer of %d tokens once all ranks are there, want 16", got)
	}
	p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 21, Count: 1}}})
	if got := slots(p.Saves); got != "[34]" {
		t.Errorf("saves of slots %s, want [34], filled while the rank was missing", got)
	}
}

func TestPromptsOnly(t *testing.T) {
	for _, tc := range []struct {
		prompt int
		want   string
	}{{0, "[0 1]"}, {10, "[0 1]"}, {8, "[0 1]"}, {7, "[0]"}} {
		f := newFixture(t, func(o *Options) { o.PromptsOnly = true })
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 10), PromptTokens: tc.prompt})
		p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
			Request: "r", Reset: true, NewBlocks: f.tables(0, 5), Count: 18, From: 10, NewTokens: tokens(50, 8),
		}}})
		if got := slots(p.Saves); got != tc.want {
			t.Errorf("prompt of %d tokens: saves of slots %s, want %s", tc.prompt, got, tc.want)
		}
	}
}

func TestMinimumOffer(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.MinOfferTokens = 12 })
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	for computed, want := range map[int]int{0: 16, 4: 12, 8: 0} {
		if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18), Computed: computed}); got != want {
			t.Errorf("offer of %d tokens after %d, want %d", got, computed, want)
		}
		if (f.x.held() > 0) != (want > 0) {
			t.Errorf("%d leases for an offer of %d tokens", f.x.held(), want)
		}
	}
}

// Saves of one step end long after the next ones are planned.
func TestSaveUnderWayIsNotPlannedAgain(t *testing.T) {
	f := newFixture(t, nil)
	plan := func(id string) string {
		f.match(connector.MatchRequest{Request: id, Tokens: tokens(0, 10)})
		return slots(f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Reset: true, NewBlocks: f.tables(0, 3), Count: 10}}}).Saves)
	}
	for i, want := range []string{"[0 1]", "[]", "[]"} {
		if got := plan(fmt.Sprint(i)); got != want {
			t.Errorf("request %d of the same prompt plans slots %s, want %s", i, got, want)
		}
	}
	f.clock.advance(2 * f.opts.SaveTTL)
	if got := plan("late"); got != "[0 1]" {
		t.Errorf("saves of slots %s after the first was lost, want [0 1]", got)
	}
}

// While other saves keep the leader busy, too, a lost one is planned again some time.
func TestSaveThatWasLostIsPlannedAgain(t *testing.T) {
	f := newFixture(t, nil)
	plan := func(id string, toks []uint32) string {
		f.match(connector.MatchRequest{Request: id, Tokens: toks})
		return slots(f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: id, Reset: true, NewBlocks: f.tables(0, 3), Count: 10}}}).Saves)
	}
	plan("first", tokens(0, 10))
	for i := range 3 {
		f.clock.advance(f.opts.SaveTTL * 6 / 10)
		if got := plan(fmt.Sprint("again", i), tokens(0, 10)); got != "[]" {
			t.Errorf("saves of slots %s after %d/10 of the time, want none yet", got, 6*(i+1))
		}
		plan(fmt.Sprint("other", i), tokens(100*(i+1), 10))
	}
	f.clock.advance(f.opts.SaveTTL * 6 / 10)
	if got := plan("late", tokens(0, 10)); got != "[0 1]" {
		t.Errorf("saves of slots %s after more than two times the time to live, want [0 1]", got)
	}
}

func TestTableWithoutABeginningIsNotSaved(t *testing.T) {
	for name, lose := range map[string]func(f *fixture){
		"preempted":   func(f *fixture) { f.step(connector.StepRequest{Preempted: []string{"r"}}) },
		"reset":       func(f *fixture) { _ = f.Reset(f.Context()) },
		"never known": func(f *fixture) { f.step(connector.StepRequest{Finished: []string{"r"}}) },
	} {
		f := newFixture(t, nil)
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
		f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(0, 1), Count: 4}}})
		lose(f)
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
		p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", NewBlocks: f.tables(7, 4), Computed: 4, Count: 14}}})
		if !p.Empty() {
			t.Errorf("%s: slots %s are saved as the prompt's first blocks", name, slots(p.Saves))
		}
		p = f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(20, 5), Computed: 17, Count: 1}}})
		if got := slots(p.Saves); got != "[21 22 23]" {
			t.Errorf("%s: saves of slots %s with the whole table, want [21 22 23]", name, got)
		}
	}
}

func TestReportOfAnOlderLoad(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	load := func(slot int) {
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
		f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(slot, 5), External: 16}}})
	}
	load(20)
	load(40) // the engine has thrown the first away
	if f.x.held() != 2 {
		t.Fatalf("%d leases, want one a load", f.x.held())
	}
	f.loaded("r")
	if f.x.held() != 1 {
		t.Errorf("%d leases after the older load was reported, want the newer's", f.x.held())
	}
	load(60)
	f.loaded("r", 61) // whichever it is of
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 0 {
		t.Errorf("offer of %d tokens after a failed load", got)
	}
	f.loaded("r")
	f.loaded("r")
	if f.x.held() != 0 {
		t.Errorf("%d leases after all reports", f.x.held())
	}
}

func TestReportAfterPreemptionIsNotTheNextLoads(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	for _, slot := range []int{20, 40} {
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
		f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(slot, 5), External: 16}}})
		if slot == 20 {
			f.step(connector.StepRequest{Preempted: []string{"r"}})
		}
	}
	f.loaded("r", 21)
	if f.x.held() != 1 {
		t.Errorf("%d leases, want that of the second load", f.x.held())
	}
	if f.Stats().FailedLoads != 0 {
		t.Error("the second load is taken for failed")
	}
	f.loaded("r")
	if f.x.held() != 0 {
		t.Error("the lease is held after the report")
	}
}

func TestAbortDuringALoadReleasesAtOnce(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)})
	f.step(connector.StepRequest{
		Allocs:   []connector.Alloc{{Request: "r", Blocks: f.tables(0, 5), External: 16}},
		Finished: []string{"r"},
	})
	if f.x.held() != 0 {
		t.Error("the lease is held")
	}
	f.loaded("r")
	f.match(connector.MatchRequest{Request: "q", Tokens: tokens(0, 18)})
	f.Close()
	if f.x.held() != 0 {
		t.Error("a closed leader holds a lease")
	}
	if got := f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 18)}); got != 0 || f.Stats().Requests != 0 {
		t.Errorf("a closed leader offers %d tokens", got)
	}
	f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, Count: 8}}})
}

func TestLoadWithNothingToFillIsStillReported(t *testing.T) {
	f := newFixture(t, nil)
	none := []uint32{connector.NoBlock, connector.NoBlock}
	p := f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{none}, External: 8}}})
	if len(p.Loads) != 1 || len(p.Loads[0].Transfers) != 0 {
		t.Errorf("loads %+v, want one without transfers: the engine waits for it", p.Loads)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"no manifest":    func(o *Options) { o.Manifest = nil },
		"bad manifest":   func(o *Options) { o.Manifest.BlockSize = 0 },
		"engine's keys":  func(o *Options) { o.Manifest.KeyScheme = connector.KeySchemeEngine },
		"lease time":     func(o *Options) { o.LeaseTTL = -time.Second },
		"probe interval": func(o *Options) { o.ProbeInterval = -time.Second },
		"requests":       func(o *Options) { o.MaxRequests = -1 },
		"offer":          func(o *Options) { o.MinOfferTokens = -1 },
	} {
		o := Options{Manifest: testManifest()}
		change(&o)
		if _, err := New(o, newTestIndex()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// Defect 17: a load that was replaced is not reported, so that the report that comes is of
// its successor. The request's loads end with it, what was pinned is let go, and the request
// is saved again.
func TestReportOfTheSuccessorOfAReplacedLoadEndsTheLoads(t *testing.T) {
	for name, preempt := range map[string]bool{"preempted": true, "replaced": false} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.run("seed", tokens(0, 18), 0, connector.Scope{})
			for _, slot := range []int{20, 40} {
				f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 26)})
				f.step(connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(slot, 8), External: 16}}})
				if preempt && slot == 20 {
					f.step(connector.StepRequest{Preempted: []string{"r"}})
				}
			}
			f.loaded("r")
			saved := ""
			p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(40, 8), Computed: 16, Count: 10}}})
			saved += slots(p.Saves)
			for i := range maxStepsInFlight + 1 {
				p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{
					Request: "r", Computed: 26 + i, Count: 1, From: 26 + i, NewTokens: tokens(26+i, 1),
				}}})
				saved += slots(p.Saves)
			}
			if f.x.held() != 0 || len(f.requests.find("r").loads) != 0 {
				t.Errorf("%d leases and %d loads are left", f.x.held(), len(f.requests.find("r").loads))
			}
			for _, slot := range []string{"44", "45"} {
				if !strings.Contains(saved, slot) {
					t.Errorf("saves of slots %s, want %s among them", saved, slot)
				}
			}
		})
	}
}

// Where the replaced load was reported after all, its successor's blocks are not taken as
// filled before its own report.
func TestNothingIsSavedBeforeTheSuccessorWasReported(t *testing.T) {
	f := newFixture(t, nil)
	f.run("seed", tokens(0, 18), 0, connector.Scope{})
	for _, slot := range []int{20, 40} {
		f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 26)})
		m := connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: f.tables(slot, 8), External: 16}}}
		if slot == 40 { // an engine that computes in the step of the load
			m.Scheduled = []connector.Scheduled{{Request: "r", Reset: true, NewBlocks: f.tables(40, 8), Computed: 16, Count: 10}}
		}
		if p := f.step(m); len(p.Saves) > 0 {
			t.Errorf("saves of slots %s after a load that may fail", slots(p.Saves))
		}
		if slot == 20 {
			f.step(connector.StepRequest{Preempted: []string{"r"}})
		}
	}
	f.loaded("r") // the first
	if p := f.step(connector.StepRequest{Scheduled: []connector.Scheduled{{Request: "r", Computed: 26, Count: 1}}}); len(p.Saves) > 0 {
		t.Errorf("saves of slots %s after a load that may fail", slots(p.Saves))
	}
	f.loaded("r", 40)
	f.step(connector.StepRequest{})
	if f.x.held() != 0 || f.Stats().FailedLoads != 1 {
		t.Errorf("%d leases, %d failed loads", f.x.held(), f.Stats().FailedLoads)
	}
}
