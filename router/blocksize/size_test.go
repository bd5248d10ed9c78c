package blocksize

import (
	"reflect"
	"testing"
)

func TestTheStrongestWordCounts(t *testing.T) {
	changes := 0
	s := New(func() { changes++ })
	want := func(tokens int, from Origin, times int) {
		t.Helper()
		if st := s.Status("m"); st.Tokens != tokens || s.Tokens() != tokens || st.From != from || changes != times {
			t.Errorf("%+v after %d changes, want %d, %s, %d", st, changes, tokens, from, times)
		}
	}
	want(16, Assumed, 0)
	s.StoreSays("disk", map[int]int{128: 1})
	want(128, Stores, 1)
	s.EngineSays("a", 0, 64)
	want(64, Engines, 2)
	s.StoreSays("disk", map[int]int{128: 9})
	want(64, Engines, 2)
	s.Give(32)
	want(32, Given, 2)
	s.EngineSays("a", 0, 128)
	want(32, Given, 2)
	s.Give(0)
	want(128, Engines, 2)
	s.Forget("a")
	want(128, Stores, 2)
	s.Forget("disk")
	want(128, Stores, 2) // nobody knows better
	s.EngineSays("a", 0, 1<<20)
	s.EngineSays("a", 0, 0)
	want(128, Stores, 2)
}

func TestTheMajorityCountsAndATieChangesNothing(t *testing.T) {
	s := New(nil)
	s.EngineSays("a", 0, 16)
	s.EngineSays("b", 1, 128)
	if s.Tokens() != 16 {
		t.Error(s.Tokens())
	}
	s.EngineSays("c", 2, 128)
	if s.Tokens() != 128 {
		t.Error(s.Tokens())
	}
	s.Forget("c")
	if s.Tokens() != 128 {
		t.Error(s.Tokens())
	}
	want := Status{Model: "m", Tokens: 128, From: Engines, Engines: []RanksOf{{16, []int32{0}}, {128, []int32{1}}}}
	if st := s.Status("m"); !reflect.DeepEqual(st, want) {
		t.Errorf("%+v", st)
	}
}

func TestAChangeIsTold(t *testing.T) {
	s := New(nil)
	before := s.Changed()
	s.EngineSays("a", 0, 16)
	select {
	case <-before:
		t.Fatal("it has not changed")
	default:
	}
	s.EngineSays("a", 0, 32)
	select {
	case <-before:
	default:
		t.Fatal("it has changed")
	}
	select {
	case <-s.Changed():
		t.Fatal("there is no second change")
	default:
	}
}

// One of two engines restarts with another block size, then the other one leaves, and comes back.
func TestADeadEngineHasNoVote(t *testing.T) {
	s := New(nil)
	want := func(tokens int, ranks ...RanksOf) {
		t.Helper()
		if st := s.Status("m"); st.Tokens != tokens || st.From != Engines || !reflect.DeepEqual(st.Engines, ranks) {
			t.Errorf("%+v, want %d of %+v", st, tokens, ranks)
		}
	}
	say := func(feed string, rank int32, tokens int) {
		s.EngineConnected(feed, true)
		s.EngineSays(feed, rank, tokens)
	}
	say("a", 0, 16)
	say("b", 1, 16)
	want(16, RanksOf{16, []int32{0, 1}})
	s.EngineConnected("b", false)
	want(16, RanksOf{16, []int32{0}})
	say("b", 1, 128)
	want(16, RanksOf{16, []int32{0}}, RanksOf{128, []int32{1}}) // a tie changes nothing
	s.EngineConnected("a", false)
	want(128, RanksOf{128, []int32{1}})
	s.EngineConnected("a", true)
	want(128, RanksOf{16, []int32{0}}, RanksOf{128, []int32{1}})
	say("a", 0, 128)
	want(128, RanksOf{128, []int32{0, 1}})
}

// Dead engines outnumber the live one, and then that one dies as well: nothing speaks for the size of the dead of before.
func TestTheLastVotesHoldWhileNoEngineIsConnected(t *testing.T) {
	changes := 0
	s := New(func() { changes++ })
	for i, feed := range []string{"a", "b", "c"} {
		s.EngineConnected(feed, true)
		s.EngineSays(feed, int32(i), []int{16, 128, 128}[i])
	}
	want := func(tokens, times int) {
		t.Helper()
		if s.Tokens() != tokens || changes != times {
			t.Errorf("%d after %d changes, want %d, %d", s.Tokens(), changes, tokens, times)
		}
	}
	want(128, 1)
	s.EngineConnected("b", false)
	want(128, 1) // a tie
	s.EngineConnected("c", false)
	want(16, 2)
	s.EngineConnected("a", false)
	want(16, 2)
	s.EngineConnected("d", true) // it has not said anything yet
	want(16, 2)
	s.EngineConnected("d", false)
	s.Forget("a") // now the votes of the others are the last that are known
	want(128, 3)
	s.EngineConnected("e", true)
	s.EngineSays("e", 4, 64)
	want(64, 4)
	s.Forget("b")
	s.Forget("c")
	s.Forget("e")
	want(64, 4)
	if st := s.Status("m"); len(st.Engines) > 0 || len(s.engines.engines) != 1 { // d
		t.Errorf("%+v of %v", st, s.engines.engines)
	}
}
