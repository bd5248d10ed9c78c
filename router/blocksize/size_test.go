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
