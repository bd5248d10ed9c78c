package adapters

import (
	"fmt"
	"testing"
)

func TestANameOfTwoContentsInTwoNamespacesStandsForNothing(t *testing.T) {
	var a Table[int]
	const v, w = 1, 2
	a.Set(v, "a", "x")
	a.Set(w, "a", "y")
	if got := a.Scope("a"); got != "" || a.Count() != 2 {
		t.Errorf("%q", got)
	}
	a.Set(w, "a", "x")
	if got := a.Scope("a"); got != "x" {
		t.Errorf("%q", got)
	}
	a.Set(v, "a", "")
	a.Set(w, "a", "")
	if a.Count() != 0 || len(a.byName) != 0 {
		t.Errorf("%+v", &a)
	}
}

func TestAdaptersAreBounded(t *testing.T) {
	var a Table[int]
	const v = 1
	for i := range maxNames + 2 {
		a.Set(v, fmt.Sprint(i), "x")
	}
	if a.Count() != 0 || a.Scope("1") != "" {
		t.Errorf("%d names", a.Count())
	}
	a.Clear()
	if a.Set(v, "1", "x"); a.Scope("1") != "x" {
		t.Error("nothing is known after a new stream")
	}
}
