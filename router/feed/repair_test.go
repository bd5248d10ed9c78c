package feed

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// An engine whose events stay bad is not rebuilt all the time: a replay costs it time.
func TestRebuildsBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := errors.New("bad")
		r := newRepair(time.Second)
		for _, wait := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			r.why = bad
			if wait > 0 {
				time.Sleep(wait*time.Second - 1)
				if why := r.due(time.Now()); why != nil {
					t.Errorf("a rebuild within %v s", wait)
				}
				time.Sleep(time.Nanosecond)
			}
			if why := r.due(time.Now()); why == nil || r.why != nil {
				t.Errorf("after %v s: %v, then %v", wait, why, r.why)
			}
		}
		time.Sleep(3 * maxRebuildInterval) // a good time
		r.why = bad
		if r.due(time.Now()); time.Until(r.bad.at) != time.Second {
			t.Errorf("the next rebuild after %v", time.Until(r.bad.at))
		}
	})
}

func TestAReplayThatFailedIsNotTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		r.replayFailed(fmt.Errorf("no connection"), time.Now())
		if !r.replayPauses(time.Now()) || r.due(time.Now()) != nil {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Second)
		if r.replayPauses(time.Now()) {
			t.Errorf("%+v", r)
		}
		r.replayed(true)
		if why := r.due(time.Now()); why != nil {
			t.Errorf("after a replay: %v", why)
		}
	})
}

// An engine whose replays fail at times, and succeed in between, is asked again as soon after each failure.
func TestAReplayThatSucceedsEndsTheLongPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		for range 3 {
			for _, pause := range []time.Duration{1, 2, 4, 8} {
				r.replayFailed(errors.New("no connection"), time.Now())
				if left := time.Until(r.failed.at); left != pause*time.Second {
					t.Errorf("a pause of %v, want %d s", left, pause)
				}
				time.Sleep(time.Until(r.failed.at))
				if r.due(time.Now()) == nil {
					t.Error("not due after its pause")
				}
			}
			r.replayed(false)
		}
	})
}

// That replays failed does not put off a rebuild for bad events, and the other way round.
func TestFailedReplaysAndBadEventsHavePausesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		for range 10 {
			r.replayFailed(errors.New("no connection"), time.Now())
		}
		bad := errors.New("bad")
		if r.why = bad; r.due(time.Now()) == nil {
			t.Error("bad events wait for replays")
		}
		r.replayed(true)
		if r.replayFailed(errors.New("no connection"), time.Now()); time.Until(r.failed.at) != time.Second {
			t.Errorf("a pause of %v", time.Until(r.failed.at))
		}
	})
}
