package leader

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/doubt"
)

func TestAMatchSaysWhyNothingIsOffered(t *testing.T) {
	all := func(r string) connector.MatchRequest {
		return connector.MatchRequest{Request: r, Tokens: tokens(0, 82)}
	}
	for why, run := range map[connector.Why]func(f *fixture, x *testTiers){
		"": func(f *fixture, _ *testTiers) { f.match(all("r")) },
		connector.WhyNotReady: func(f *fixture, _ *testTiers) {
			f.SetReady(false)
			f.match(all("r"))
		},
		connector.WhyOptedOut: func(f *fixture, _ *testTiers) {
			m := all("r")
			m.NoLoad = true
			f.match(m)
		},
		connector.WhyFailed: func(f *fixture, _ *testTiers) {
			f.match(all("r"))
			a := f.alloc("r", 40)
			f.step(a)
			f.loaded("r", a.Allocs[0].Blocks[0][0])
			f.match(all("r"))
		},
		connector.WhyNothingLeft: func(f *fixture, _ *testTiers) {
			m := all("r")
			m.Computed = 80
			f.match(m)
		},
		connector.WhyNotStored: func(f *fixture, _ *testTiers) {
			f.match(connector.MatchRequest{Request: "r", Tokens: tokens(1000, 82)})
		},
		connector.WhySlow: func(f *fixture, x *testTiers) {
			x.speeds.DiskBytesPerS = 1
			f.match(all("r"))
		},
	} {
		f, x := newPriced(t, nil)
		x.speeds.DiskBytesPerS = 1e9
		run(f, x)
		if f.last.Why != why || (f.last.Tokens == 0) != (why != "") {
			t.Errorf("%q, with %d tokens offered, want %q", f.last.Why, f.last.Tokens, why)
		}
	}
	failing := newFailing(t, 0)
	for range doubt.After {
		failing.load(failing.slot())
	}
	if failing.load(); failing.last.Why != connector.WhyDoubted {
		t.Errorf("%q, want %q", failing.last.Why, connector.WhyDoubted)
	}
	f, s := newHandoff(t, nil)
	s.limit[1] = 0
	if f.match(all("r")); f.last.Why != connector.WhyLate {
		t.Errorf("%q, want %q", f.last.Why, connector.WhyLate)
	}
	s.limit[1] = 6
	if f.match(all("s")); f.last.Why != "" || f.last.Tokens == 0 {
		t.Errorf("%q of an offer of %d tokens", f.last.Why, f.last.Tokens)
	}
}

// The daemon may have given a request its trace, at the first match: the engine, which knows of none, repeats the match without.
func TestATraceOutlivesAMatchWithoutOne(t *testing.T) {
	f := newFixture(t, nil)
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 8), Trace: "00-aa-bb-01"})
	f.match(connector.MatchRequest{Request: "r", From: 8})
	if got := f.Trace("r"); got != "00-aa-bb-01" {
		t.Errorf("trace %q", got)
	}
	f.match(connector.MatchRequest{Request: "r", Tokens: tokens(0, 8), Scope: connector.Scope{Salt: "other"}}) // another request
	if got := f.Trace("r"); got != "" {
		t.Errorf("trace %q", got)
	}
}
