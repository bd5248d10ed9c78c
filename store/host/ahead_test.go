package host

import (
	"errors"
	"testing"
	"time"
)

// readAhead reads n records before their loads and returns how many there was room for.
func readAhead(t *testing.T, c *Account, first, n int) int {
	t.Helper()
	for i := range n {
		var s Slot
		rec := record(first + i)
		switch o, err := c.Acquire(t.Context(), &s, rec, 4096, false); {
		case errors.Is(err, ErrFull):
			return i
		case err != nil || o != Fill || !s.Publish(rec):
			t.Fatalf("record %d: %v, %v", first+i, o, err)
		}
		s.Release()
	}
	return n
}

// Requests that were aborted after their records were read would end all such reads, for as long as
// the arena has room for everything else.
func TestReadsWhoseLoadsNeverComeKeepNoOthersOut(t *testing.T) {
	const units, limit = 64, 64 * testUnit / prefetchShare / 4096
	now := time.Unix(1, 0)
	a, err := New(Options{Bytes: units * testUnit, unitBytes: testUnit, now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	c, user := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	c.readAhead()
	first := 0
	for turn := range 600 { // more than there are marks
		n := readAhead(t, c, first, limit+1)
		if n == 0 || n > limit {
			t.Fatalf("turn %d: %d records are read, at most %d", turn, n, limit)
		}
		if more := readAhead(t, c, first+n, 1); more != 0 {
			t.Fatal("more than the share is read")
		}
		if turn < 3 && n != limit {
			t.Fatalf("turn %d: %d records are read, want %d", turn, n, limit)
		}
		first += n
		now = now.Add(aheadTime)
		if more := readAhead(t, c, first, 1); turn == 0 && more != 0 {
			t.Fatal("a record that may still be loaded does not count")
		}
		now = now.Add(aheadTime)
	}
	st := a.Stats()
	if st.Evictions != st.PrefetchWasted || uint64(st.PrefetchedBytes/4096)+st.PrefetchWasted != st.Prefetched {
		t.Errorf("%+v", st)
	}
	// A load that comes late finds the record, and that it was read for it.
	var s Slot
	if o, err := user.Acquire(t.Context(), &s, record(first-1), 4096, false); err != nil || o != Hit || !s.read {
		t.Errorf("%v, read %t, %v", o, s.read, err)
	}
	if got := a.Stats(); got.PrefetchUsed != 1 || got.PrefetchedBytes != st.PrefetchedBytes-4096 {
		t.Errorf("%+v", got)
	}
	s.Release()
}

// What is looked for before a load is none.
func TestReadsBeforeLoadsCountAsNoLoads(t *testing.T) {
	a := newArena(t, 16)
	c, user := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	c.readAhead()
	var fill, s Slot
	if o, err := user.Acquire(t.Context(), &fill, record(1), 4096, false); err != nil || o != Fill {
		t.Fatal(o, err)
	}
	if o, err := c.Acquire(t.Context(), &s, record(1), 4096, false); err != nil || o != Pending {
		t.Fatal(o, err)
	}
	s.Release()
	fill.Publish(record(1))
	if o, err := c.Acquire(t.Context(), &s, record(1), 4096, false); err != nil || o != Hit {
		t.Fatal(o, err)
	}
	s.Release()
	fill.Release()
	readAhead(t, c, 2, 1000)
	if st := a.Stats(); st.Hits != 0 || st.Joined != 0 || st.Misses != 1 || st.RefusedLoads != 0 {
		t.Errorf("%+v", st)
	}
}
