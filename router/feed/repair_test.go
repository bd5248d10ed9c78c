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
		r := repair{pause: backoff{least: time.Second, most: maxRebuildInterval}}
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
		if r.due(time.Now()); time.Until(r.at) != time.Second {
			t.Errorf("the next rebuild after %v", time.Until(r.at))
		}
	})
}

func TestAReplayThatFailedIsNotTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := repair{pause: backoff{least: time.Second, most: maxRebuildInterval}}
		r.replayFailed(fmt.Errorf("no connection"), time.Now())
		if !r.replayPauses(time.Now()) || r.due(time.Now()) != nil {
			t.Errorf("%+v", r)
		}
		time.Sleep(time.Second)
		if r.replayPauses(time.Now()) {
			t.Errorf("%+v", r)
		}
		r.replayed()
		if why := r.due(time.Now()); why != nil {
			t.Errorf("after a replay: %v", why)
		}
	})
}
