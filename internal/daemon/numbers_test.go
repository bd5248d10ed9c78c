package daemon

import (
	"context"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
)

// A namespace that gets the number of one that was forgotten finds nothing of it in memory:
// with keys of the engine's own equal prefixes have equal proofs in all namespaces.
func TestNumberGivenOutAgainFindsNothingOfItsLastNamespace(t *testing.T) {
	b, a := newTestBackend(t, nil)
	account, err := a.Account(host.AccountOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer account.Close()
	const ns, other = 7, 8
	keep := func(ns disk.NamespaceID) host.Record {
		r := host.Record{ID: disk.RecordID{Namespace: ns, Key: connector.Key{1}}, Proof: connector.Proof{2}}
		var s host.Slot
		if got, err := account.Acquire(context.Background(), &s, r, 8000, false); got != host.Fill {
			t.Fatalf("%v, %v", got, err)
		}
		defer s.Release()
		if !s.Publish(r) {
			t.Fatal("not published")
		}
		return r
	}
	first, second := connector.NamespaceDigest{1}, connector.NamespaceDigest{2}
	b.numbers.claim(ns, first, a)
	of, beside := keep(ns), keep(other)
	b.numbers.claim(ns, first, a)
	if !a.Holds(of.ID) {
		t.Error("a namespace that is opened again has lost its records")
	}
	b.numbers.claim(ns, second, a)
	if a.Holds(of.ID) || !a.Holds(beside.ID) {
		t.Error("the new namespace finds the last one's record, or another has lost its own")
	}
}
