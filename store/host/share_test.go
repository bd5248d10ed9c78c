package host

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestSavesOfOneRankLeaveAnothersShareAlone(t *testing.T) {
	a := newArena(t, 8)
	hog, other := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	taken := make([]Slot, 200)
	n := 0
	for n < len(taken) && hog.ReserveSave(&taken[n], 4096) {
		n++
	}
	if want := 8 * testUnit / 4 / 4096; n != want {
		t.Errorf("%d saves were taken, want %d: half of the half of the arena", n, want)
	}
	var s Slot
	acquire(t, other, &s, record(1), 2*testUnit, Fill)
	s.Release()
	if a.Stats().RefusedSaves != 0 {
		t.Errorf("%+v: a save that may try again was not given up", a.Stats())
	}
	hog.RefuseSave()
	for i := range n {
		taken[i].Release()
	}
	if a.Stats().RefusedSaves != 1 {
		t.Errorf("%+v", a.Stats())
	}
}

// Finding 30: a thousand connections that do nothing leave the ranks their shares, and one
// that begins to use memory has its own.
func TestIdleAccountsNarrowNobodysShare(t *testing.T) {
	a := newArena(t, 8)
	c := newAccount(t, a, AccountOptions{})
	whole := c.usage().LoadLimitBytes
	idle := make([]*Account, 1000)
	for i := range idle {
		var err error
		if idle[i], err = a.Account(AccountOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if u := c.usage(); u.LoadLimitBytes != whole || whole != 8*testUnit/2 {
		t.Errorf("%d bytes are left to a rank of %d", u.LoadLimitBytes, whole)
	}
	var s Slot
	if !idle[0].ReserveSave(&s, 4096) {
		t.Fatal("no slot")
	}
	if st, u := a.Stats(), c.usage(); st.Active != 2 || st.Accounts != 1001 || u.LoadLimitBytes != whole/2 {
		t.Errorf("%d of %d accounts share, %d bytes each", st.Active, st.Accounts, u.LoadLimitBytes)
	}
	s.Release()
	idle[1].SetActive(true)
	idle[1].SetActive(true)
	if u := idle[0].usage(); u.LoadLimitBytes != whole/3 {
		t.Errorf("%d bytes for one that would be the third", u.LoadLimitBytes)
	}
	idle[1].Close()
	idle[1].SetActive(true) // too late
	if st, u := a.Stats(), c.usage(); st.Active != 1 || u.LoadLimitBytes != whole {
		t.Errorf("%d accounts share, %d bytes each", st.Active, u.LoadLimitBytes)
	}
	for _, c := range idle {
		c.Close()
	}
	if st := a.Stats(); st.Accounts != 1 || st.Active != 1 {
		t.Errorf("%+v", st)
	}
}

func TestRankWithNothingGetsOneSlotOfAnySize(t *testing.T) {
	a := newArena(t, 8)
	c := newAccount(t, a, AccountOptions{LoadBytes: 4096, SaveBytes: 4096})
	var s, more Slot
	acquire(t, c, &s, record(1), 8*testUnit, Fill)
	acquire(t, c, &more, record(2), 4096, Full)
	s.Release()
}

// An account that takes and returns small slots all the time, so that every span always
// holds one, must not keep another waiting for a large one.
func TestHogCannotMakeAnotherWaitForEver(t *testing.T) {
	a := newArena(t, 4)
	hog, other := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	const held = 4 // a slot in each unit
	var slots [64]Slot
	for i := range slots {
		if err := slotFor(hog, &slots[i], i); err != nil && !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
	}
	for i := range slots {
		slots[i].Release()
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var rounds atomic.Int64
	wg.Go(func() {
		pins := make([]Slot, held)
		for i := 0; ; i++ {
			select {
			case <-stop:
				for j := range pins {
					pins[j].Release()
				}
				return
			default:
			}
			pins[i%held].Release()
			_ = slotFor(hog, &pins[i%held], i*16%64)
			rounds.Add(1)
			runtime.Gosched()
		}
	})
	for rounds.Load() < held {
		runtime.Gosched()
	}
	for i := range 50 {
		var s Slot
		o, err := other.Acquire(t.Context(), &s, record(1000+i), 3*testUnit, true)
		if o != Fill || err != nil {
			t.Fatalf("round %d: %v, %v", i, o, err)
		}
		s.Release()
	}
	close(stop)
	wg.Wait()
}

// fullOfPins fills an arena of four units, and pins one record in each.
func fullOfPins(t *testing.T, hog *Account) *[4]Slot {
	t.Helper()
	pins := new([4]Slot)
	var fill Slot
	for n := range 64 {
		if err := slotFor(hog, &fill, n); err != nil {
			t.Fatal(err)
		}
		fill.Release()
	}
	for i := range pins {
		acquire(t, hog, &pins[i], record(16*i), 4096, Hit)
	}
	return pins
}

// slotFor pins the slot of a record, filled or found.
func slotFor(c *Account, s *Slot, n int) error {
	o, err := c.Acquire(context.Background(), s, record(n), 4096, false)
	if o == Fill {
		s.Publish(record(n))
	}
	return err
}

func TestWaitersAreServedInOrderAndCanGiveUp(t *testing.T) {
	a := newArena(t, 2)
	c := newAccount(t, a, AccountOptions{LoadBytes: testUnit})
	var first Slot
	acquire(t, c, &first, record(0), testUnit, Fill)
	ctx, cancel := context.WithCancel(t.Context())
	var gaveUp, next Slot
	results := make(chan error, 2)
	go func() { _, err := c.Acquire(ctx, &gaveUp, record(1), testUnit, true); results <- err }()
	for a.Stats().Waiting < 1 {
		runtime.Gosched()
	}
	go func() { _, err := c.Acquire(t.Context(), &next, record(2), testUnit, true); results <- err }()
	for a.Stats().Waiting < 2 {
		runtime.Gosched()
	}
	cancel()
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want canceled", err)
	}
	first.Release()
	if err := <-results; err != nil {
		t.Error(err)
	}
	next.Release()
}

func TestClosedAccountWakesItsWaiters(t *testing.T) {
	a := newArena(t, 2)
	c := newAccount(t, a, AccountOptions{LoadBytes: testUnit})
	var held, waits Slot
	acquire(t, c, &held, record(0), testUnit, Fill)
	result := make(chan error, 1)
	go func() {
		_, err := c.Acquire(context.Background(), &waits, record(1), testUnit, true)
		result <- err
	}()
	for a.Stats().Waiting < 1 {
		runtime.Gosched()
	}
	c.Close()
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
	held.Release()
}

// What is released of a run that a waiter is promised is not given out again, even to
// those who ask for less and first.
func TestDrainedMemoryIsKeptForTheWaiter(t *testing.T) {
	a := newArena(t, 4)
	hog, other := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	pins := fullOfPins(t, hog)
	var large Slot
	result := make(chan Outcome, 1)
	go func() {
		o, _ := other.Acquire(context.Background(), &large, record(1000), 4*testUnit, true)
		result <- o
	}()
	for a.Stats().Waiting < 1 {
		runtime.Gosched()
	}
	if a.Stats().Drains != 1 {
		t.Errorf("%+v", a.Stats())
	}
	var again Slot
	for i := range pins {
		if hog.lookup(&again, record(16*i), 4096) || hog.ReserveSave(&again, 4096) || hog.pinAlso(&again, &pins[i]) {
			t.Fatal("memory that is promised is given to another")
		}
		pins[i].Release()
	}
	if o := <-result; o != Fill {
		t.Errorf("%v, want fill", o)
	}
	large.Release()
	a.check(t)
	acquire(t, hog, &again, record(1), 4096, Fill)
	again.Release()
}
