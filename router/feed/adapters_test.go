package feed

import (
	"errors"
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
