package lease_test

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/lease"
)

var now = time.Unix(1000, 0)

// hold takes a lease of some slots until deadline.
func hold(t *testing.T, l *lease.Table, deadline time.Time, refs ...index.Ref) store.LeaseID {
	t.Helper()
	e := l.Begin()
	if e == nil {
		t.Fatal("no lease is given")
	}
	if len(e.Refs) != 0 {
		t.Fatalf("a new lease pins %v", e.Refs)
	}
	e.Refs = append(e.Refs, refs...)
	return l.Hold(e, deadline)
}

func TestLeaseEndsOnce(t *testing.T) {
	l := lease.New(10)
	a, b := hold(t, l, now, 1, 2), hold(t, l, now, 3)
	if a == 0 || b == 0 || a == b || l.Count() != 2 {
		t.Fatalf("leases %d and %d, %d are held", a, b, l.Count())
	}
	if e := l.End(a); e == nil || len(e.Refs) != 2 {
		t.Errorf("the end of a lease gives %+v", e)
	}
	if l.End(a) != nil || l.Renew(a, now, now.Add(time.Hour)) || l.End(0) != nil {
		t.Error("a lease that has ended, or never was, ends")
	}
	if c := hold(t, l, now); c == a || c == b || l.Count() != 2 {
		t.Errorf("lease %d has the name of another, %d are held", c, l.Count())
	}
}

func TestLeasesAreBounded(t *testing.T) {
	l := lease.New(2)
	a := hold(t, l, now)
	hold(t, l, now)
	if l.Begin() != nil {
		t.Error("a third lease of two is given")
	}
	l.Recycle(l.End(a))
	hold(t, l, now)
}

// A lease holds up to its deadline and not after it, whether it is looked at or renewed.
func TestLeaseRunsOut(t *testing.T) {
	l := lease.New(10)
	short, long := hold(t, l, now), hold(t, l, now.Add(time.Minute))
	if l.Expired(now) != nil || !l.Renew(short, now, now.Add(time.Second)) {
		t.Error("a lease ends before its deadline")
	}
	if l.Expired(now.Add(time.Second)) != nil {
		t.Error("a lease that was renewed ends when it would have")
	}
	later := now.Add(2 * time.Second)
	if l.Renew(short, later, later.Add(time.Hour)) {
		t.Error("a lease is renewed after its deadline")
	}
	if l.Expired(later) == nil || l.Expired(later) != nil || l.Count() != 1 {
		t.Errorf("%d leases are held, of one that goes on", l.Count())
	}
	if !l.Renew(long, later, later) || l.End(long) == nil {
		t.Error("the other one has ended")
	}
}

// A look-up of a long chain does not allocate: it uses the memory of a lease that has ended. What
// is kept for that is bounded.
func TestMemoryOfEndedLeasesIsUsedAgain(t *testing.T) {
	const many = 1000
	l := lease.New(many)
	refs := make([]index.Ref, 100)
	ids := make([]store.LeaseID, many)
	once := func(n int) {
		for i := range n {
			ids[i] = hold(t, l, now, refs...)
		}
		for _, id := range ids[:n] {
			l.Recycle(l.End(id))
		}
	}
	once(100)
	if n := testing.AllocsPerRun(10, func() { once(100) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	once(many)
	kept := 0
	for range many {
		if e := l.Begin(); cap(e.Refs) > 0 {
			kept++
		}
	}
	if kept < 100 || kept > many/2 {
		t.Errorf("the memory of %d leases of %d was kept", kept, many)
	}
}
