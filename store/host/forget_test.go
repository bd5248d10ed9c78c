package host

import (
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

func TestForgottenRecordsAreFoundByNobody(t *testing.T) {
	const payload = testUnit / 4
	a := newArena(t, 3)
	gone := newAccount(t, a, AccountOptions{})
	stays := newAccount(t, a, AccountOptions{Namespace: connector.NamespaceDigest{1}})
	save := func(c *Account, n int, s *Slot) {
		t.Helper()
		r := record(n)
		r.ID.Namespace = c.opts.Namespace
		if !c.ReserveSave(s, payload) {
			t.Fatal("no memory")
		}
		s.Bytes()[0] = byte(n)
		if !s.Publish(r) {
			t.Fatal("not published")
		}
	}
	var held, unused, other, filling Slot
	save(gone, 1, &held)
	save(gone, 2, &unused)
	unused.Release()
	save(stays, 1, &other)
	other.Release()
	acquire(t, gone, &filling, record(3), payload, Fill)
	if n, left := a.Forget(connector.NamespaceDigest{}); n != 2 || left != 1 {
		t.Errorf("%d are forgotten, %d being filled", n, left)
	}
	at := make([]bool, 3)
	a.Present(connector.NamespaceDigest{}, 0, []connector.Key{record(1).ID.Key, record(2).ID.Key, record(3).ID.Key}, at)
	if slices.Contains(at, true) {
		t.Errorf("present: %v", at)
	}
	if held.Bytes()[0] != 1 {
		t.Error("the bytes of a load are lost")
	}
	a.check(t)
	var again Slot
	acquire(t, gone, &again, record(1), payload, Fill) // as if it had never been there
	if again.Offset() == held.Offset() {
		t.Fatal("memory in use is given out")
	}
	for _, s := range []*Slot{&again, &held, &filling} {
		s.Release()
	}
	r := record(1)
	r.ID.Namespace = stays.opts.Namespace
	if !stays.lookup(&other, r, payload) || other.Bytes()[0] != 1 {
		t.Error("the record of another namespace is gone")
	}
	other.Release()
	if n, left := a.Forget(connector.NamespaceDigest{7}); n != 0 || left != 0 {
		t.Errorf("%d and %d of a namespace that is not known", n, left)
	}
	a.check(t)
	if st := a.Stats(); st.Evictions != 0 || st.UsedBytes != 0 {
		t.Errorf("%+v", st)
	}
}

func TestSingleRecordsAreForgotten(t *testing.T) {
	const payload = testUnit / 4
	a := newArena(t, 3)
	c := newAccount(t, a, AccountOptions{})
	var slots [3]Slot
	for i := range slots {
		if !c.ReserveSave(&slots[i], payload) || !slots[i].Publish(record(i)) {
			t.Fatal("not published")
		}
	}
	slots[0].Release()
	slots[2].Release()
	var filling Slot
	acquire(t, c, &filling, record(3), payload, Fill)
	keys := []connector.Key{record(0).ID.Key, record(1).ID.Key, record(3).ID.Key, record(9).ID.Key}
	if n, left := a.ForgetRecords(connector.NamespaceDigest{}, 0, keys); n != 2 || left != 1 {
		t.Errorf("%d are forgotten, %d being filled", n, left)
	}
	if n, left := a.ForgetRecords(connector.NamespaceDigest{7}, 0, keys); n != 0 || left != 0 {
		t.Errorf("%d are forgotten in another namespace, %d being filled", n, left)
	}
	at := make([]bool, 3)
	a.Present(connector.NamespaceDigest{}, 0, []connector.Key{record(0).ID.Key, record(1).ID.Key, record(2).ID.Key}, at)
	if !slices.Equal(at, []bool{false, false, true}) {
		t.Errorf("present: %v", at)
	}
	a.check(t)
	filling.Release()
	slots[1].Release()
	a.check(t)
}
