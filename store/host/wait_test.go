package host

import (
	"context"
	"runtime"
	"testing"
)

// The wait for memory ends with its context in the moment in which the memory is there,
// and goes over into the wait for another's read.
func TestWaitReturnsNoSlotThatIsStillBeingRead(t *testing.T) {
	a := newArena(t, 2)
	c, other := newAccount(t, a, AccountOptions{LoadBytes: 4096}), newAccount(t, a, AccountOptions{})
	for range 300 {
		var filling, held, s Slot
		acquire(t, other, &filling, record(1), 4096, Fill)
		acquire(t, c, &held, record(2), 4096, Fill)
		ctx, cancel := context.WithCancel(t.Context())
		bad := make(chan bool)
		go func() {
			o, err := c.Acquire(ctx, &s, record(1), 4096, true)
			if o == Pending {
				err = s.Wait(ctx)
			}
			bad <- err == nil && s.Bytes() == nil
		}()
		for a.Stats().Waiting < 1 {
			runtime.Gosched()
		}
		cancel()
		held.Release()
		if <-bad {
			t.Fatal("Wait returned nil while the record was being read")
		}
		s.Release()
		filling.Release()
	}
}

// A waiter that gives up takes the memory that was kept free for it along: the next one of
// its account may need more.
func TestMemoryIsKeptForTheNextWaiterAgain(t *testing.T) {
	a := newArena(t, 4)
	hog, c := newAccount(t, a, AccountOptions{}), newAccount(t, a, AccountOptions{})
	pins := fullOfPins(t, hog)
	ctx, cancel := context.WithCancel(t.Context())
	var first, second Slot
	results := make(chan error, 2)
	wait := func(ctx context.Context, s *Slot, n, payload, waiting int) {
		go func() { _, err := c.Acquire(ctx, s, record(n), payload, true); results <- err }()
		for a.Stats().Waiting < waiting {
			runtime.Gosched()
		}
	}
	wait(ctx, &first, 1000, testUnit, 1)
	wait(t.Context(), &second, 1001, 3*testUnit, 2)
	cancel()
	if err := <-results; err == nil {
		t.Error("the first waiter was served")
	}
	a.mu.Lock()
	if d := &a.drain; d.owner != c || d.units != 3 {
		t.Errorf("%d units are kept free, want the 3 that the next waiter needs", d.units)
	}
	a.mu.Unlock()
	for i := range pins {
		pins[i].Release()
	}
	if err := <-results; err != nil {
		t.Error(err)
	}
	second.Release()
	a.check(t)
}
