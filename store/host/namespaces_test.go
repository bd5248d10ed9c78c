package host

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// A daemon sees any number of namespaces in its life. What it knows of them is bounded by what is
// there, and a number that is given out again finds no record of another.
func TestNamespacesAreForgottenWithTheirLastRecord(t *testing.T) {
	const namespaces, payload = 1000, testUnit / 4
	a := newArena(t, 2)
	open := func(n int) (*Account, func()) {
		c := newAccount(t, a, AccountOptions{Namespace: connector.NamespaceDigest{byte(n), byte(n >> 8)}})
		return c, c.Close
	}
	for n := range namespaces {
		c, end := open(n)
		if n%3 > 0 { // others save nothing
			r := record(1)
			r.ID.Namespace = c.opts.Namespace
			var s Slot
			if !c.ReserveSave(&s, payload) {
				t.Fatal("no memory")
			}
			s.Bytes()[0], s.Bytes()[1] = byte(n), byte(n>>8)
			s.Publish(r)
			if n%2 == 0 {
				s.Release()
				end()
			} else { // what it has pinned outlives it
				end()
				s.Release()
			}
		} else {
			end()
		}
		a.check(t)
		if len(a.spaces) > 11 {
			t.Fatalf("%d numbers for 8 slots and an account", len(a.spaces)-1)
		}
	}
	found := 0
	for n := range namespaces {
		c, end := open(n)
		r := record(1)
		r.ID.Namespace = c.opts.Namespace
		var s Slot
		if c.lookup(&s, r, payload) {
			if found++; s.Bytes()[0] != byte(n) || s.Bytes()[1] != byte(n>>8) {
				t.Errorf("namespace %d finds the record of another", n)
			}
			s.Release()
		}
		end()
	}
	if found != 8 {
		t.Errorf("%d records are found, there is room for 8", found)
	}
}
