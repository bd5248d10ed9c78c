package feed

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/store/residency"
)

func adapterFrame(number uint32, name, scope string) part {
	return func(w *residency.Writer) error {
		return w.Adapter(residency.Adapter{Namespace: number, Name: name, Scope: scope})
	}
}

func TestAnAdaptersScopeIsWhatTheStreamSaidLast(t *testing.T) {
	f, _ := newResidency(t, residencyOptions())
	s := tell(t, f, hello(1, false), snapshotEnd(5), namespace(0, testBlockSize), namespace(1, 2*testBlockSize), adapterFrame(0, "a", "old"), adapterFrame(1, "b", "x"))
	wants := func(why, name, want string, known int) {
		t.Helper()
		if got := f.AdapterScope(name); got != want || f.Stats().Adapters != known {
			t.Errorf("%s: %q stands for %q, want %q; %d known", why, name, got, want, f.Stats().Adapters)
		}
	}
	wants("told", "a", "old", 1)
	wants("of a namespace that is ignored", "b", "", 1)
	wants("never told", "c", "", 1)
	s.tell(adapterFrame(0, "a", "new"))
	wants("told otherwise", "a", "new", 1)
	s.tell(adapterFrame(0, "a", ""), adapterFrame(0, "c", ""))
	wants("taken back", "a", "", 0)
	s.tell(adapterFrame(0, "a", "new"))
	if err := s.apply(adapterFrame(9, "a", "x")); !errors.Is(err, residency.ErrMalformed) {
		t.Errorf("a namespace that was not described: %v", err)
	}
	again := residency.NewReader(&s.pipe, residency.Position{Epoch: 1, Seq: 5})
	s.r = again
	s.tell(hello(1, true))
	wants("a new stream begins", "a", "", 0)
}

func TestANameOfTwoContentsInTwoNamespacesStandsForNothing(t *testing.T) {
	var a adapters
	v, w := new(view), new(view)
	a.set(v, "a", "x")
	a.set(w, "a", "y")
	if got := a.scope("a"); got != "" || a.count() != 2 {
		t.Errorf("%q", got)
	}
	a.set(w, "a", "x")
	if got := a.scope("a"); got != "x" {
		t.Errorf("%q", got)
	}
	a.set(v, "a", "")
	a.set(w, "a", "")
	if a.count() != 0 || len(a.byName) != 0 {
		t.Errorf("%+v", &a)
	}
}

func TestAdaptersAreBounded(t *testing.T) {
	var a adapters
	v := new(view)
	for i := range maxAdapters + 2 {
		a.set(v, fmt.Sprint(i), "x")
	}
	if a.count() != 0 || a.scope("1") != "" {
		t.Errorf("%d names", a.count())
	}
	a.clear()
	if a.set(v, "1", "x"); a.scope("1") != "x" {
		t.Error("nothing is known after a new stream")
	}
}
