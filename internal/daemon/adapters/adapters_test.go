package adapters

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/residency"
)

func TestANameStandsForWhatAllSessionsSay(t *testing.T) {
	a, b := connector.NamespaceDigest{1}, connector.NamespaceDigest{2}
	r := New()
	wants := func(why string, want map[residency.NamedAdapter]string) {
		t.Helper()
		if got := r.Scopes(); !maps.Equal(got, want) {
			t.Errorf("%s: %v", why, got)
		}
	}
	changes := func(why string, want bool, do func()) {
		t.Helper()
		before := r.Version()
		if do(); (r.Version() != before) != want {
			t.Errorf("%s: version %d after %d", why, r.Version(), before)
		}
	}
	named := func(ns connector.NamespaceDigest, name string) residency.NamedAdapter {
		return residency.NamedAdapter{Namespace: ns, Name: name}
	}
	changes("nothing is told", false, func() { r.Tell(1, a, nil) })
	changes("a name", true, func() { r.Tell(1, a, []connector.Adapter{{Name: "x", LoRA: "old"}}) })
	changes("the same again", false, func() { r.Tell(1, a, []connector.Adapter{{Name: "x", LoRA: "old"}}) })
	r.Tell(2, a, []connector.Adapter{{Name: "x", LoRA: "old"}, {Name: "y", LoRA: "y"}})
	r.Tell(3, b, []connector.Adapter{{Name: "x", LoRA: "new"}})
	wants("sessions agree", map[residency.NamedAdapter]string{named(a, "x"): "old", named(a, "y"): "y", named(b, "x"): "new"})
	r.Tell(2, a, []connector.Adapter{{Name: "x", LoRA: "new"}})
	wants("sessions differ", map[residency.NamedAdapter]string{named(a, "y"): "y", named(b, "x"): "new"})
	changes("a session ends", true, func() { r.Forget(1) })
	wants("one is left", map[residency.NamedAdapter]string{named(a, "x"): "new", named(a, "y"): "y", named(b, "x"): "new"})
	r.Tell(4, a, []connector.Adapter{{Name: "x"}})
	wants("a session does not use it", map[residency.NamedAdapter]string{named(a, "y"): "y", named(b, "x"): "new"})
	r.Forget(4)
	r.Forget(3)
	changes("a session that is not there ends", false, func() { r.Forget(3) })
	wants("as before", map[residency.NamedAdapter]string{named(a, "x"): "new", named(a, "y"): "y"})
}

// A session with more names than are kept could contradict what the others say: its namespace tells nothing.
func TestAFullSessionLeavesNothingKnown(t *testing.T) {
	ns := connector.NamespaceDigest{1}
	r := New()
	r.Tell(1, ns, []connector.Adapter{{Name: "x", LoRA: "x"}})
	for i := range maxNames + 2 {
		r.Tell(2, ns, []connector.Adapter{{Name: fmt.Sprint(i), LoRA: "s"}})
	}
	if got := r.Scopes(); len(got) != 0 {
		t.Errorf("%d names", len(got))
	}
	r.Forget(2)
	if got := r.Scopes(); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// All sessions together have a bound, and so has each text.
func TestWhatSessionsTellIsBounded(t *testing.T) {
	r := New()
	list := make([]connector.Adapter, maxNames)
	for i := range list {
		list[i] = connector.Adapter{Name: fmt.Sprint(i), LoRA: "s"}
	}
	for key := range maxAll/maxNames + 1 {
		r.Tell(key, connector.NamespaceDigest{byte(key)}, list)
	}
	if got := len(r.Scopes()); got != maxAll || r.names != maxAll {
		t.Errorf("%d names, %d counted", got, r.names)
	}
	for key := range maxAll/maxNames + 1 {
		r.Forget(key)
	}
	long := strings.Repeat("x", maxScopeBytes+1)
	r.Tell(1, connector.NamespaceDigest{}, []connector.Adapter{{Name: long, LoRA: "s"}, {Name: "a", LoRA: long}, {Name: "b", LoRA: "s"}})
	if got := r.Scopes(); len(got) != 1 || r.names != 2 {
		t.Errorf("%v, %d counted", got, r.names)
	}
}
