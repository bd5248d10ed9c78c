package host

import (
	"errors"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// While a record is read for a caller that does not know its parent, others like that may wait for it. Whoever wants
// one with a certain parent, the root among them, does not get whatever is stored.
func TestReadForAnyParentServesNobodyWithAParent(t *testing.T) {
	const payload = 5000
	for name, tc := range map[string]struct {
		wanted func(stored connector.Key) store.Record
		served bool
	}{
		"any parent": {func(connector.Key) store.Record {
			r := record(1)
			r.Parent, r.AnyParent = connector.Key{}, true
			return r
		}, true},
		"the root":       {func(connector.Key) store.Record { r := record(1); r.Parent = connector.Key{}; return r }, false},
		"another parent": {func(p connector.Key) store.Record { r := record(1); r.Parent = p; r.Parent[0]++; return r }, false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t, 4)
			c := newAccount(t, a, AccountOptions{})
			defer c.Close()
			stored := record(1)
			stored.Parent = connector.Key{7, 7, 7}
			free := stored
			free.Parent, free.AnyParent = connector.Key{}, true
			var reader, other Slot
			acquire(t, c, &reader, free, payload, Fill)
			outcome, err := c.Acquire(t.Context(), &other, tc.wanted(stored.Parent), payload, false)
			if err != nil {
				t.Fatal(err)
			}
			free.Parent = stored.Parent // as the tier sets it
			if !reader.Publish(free) {
				t.Fatal("what was read is not taken")
			}
			if outcome == Pending {
				if err := other.Wait(t.Context()); (err == nil) != tc.served || err != nil && !errors.Is(err, ErrFillFailed) {
					t.Errorf("%v after a wait", err)
				}
			} else if tc.served {
				t.Errorf("%v, want a wait", outcome)
			}
			other.Release()
			reader.Release()
			for _, r := range []store.Record{stored, free, tc.wanted(stored.Parent)} {
				var s Slot
				if got, want := c.lookup(&s, r, payload), r.AnyParent || r.Parent == stored.Parent; got != want {
					t.Errorf("a record with parent %v, any %t: found %t", r.Parent, r.AnyParent, got)
				}
				s.Release()
			}
			if u := c.usage(); u.LoadBytes != 0 {
				t.Errorf("%d bytes are left", u.LoadBytes)
			}
			a.check(t)
		})
	}
}
