package feed

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An engine whose events stay bad is not rebuilt all the time: a replay costs it time.
func TestRebuildsBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		for _, wait := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			r.bad.why = errors.New("bad")
			if wait > 0 {
				time.Sleep(wait*time.Second - 1)
				r.connected() // that connections come and go changes nothing
				if why, _ := r.due(time.Now()); why != nil {
					t.Errorf("a rebuild within %v s", wait)
				}
				time.Sleep(time.Nanosecond)
			}
			if why, bad := r.due(time.Now()); why == nil || !bad || r.why() != nil {
				t.Errorf("after %v s: %v, then %v", wait, why, r.why())
			}
		}
		time.Sleep(3 * maxRebuildInterval) // a good time
		r.bad.why = errors.New("bad")
		if r.due(time.Now()); time.Until(r.bad.at) != time.Second {
			t.Errorf("the next rebuild after %v", time.Until(r.bad.at))
		}
	})
}

func TestAReplayThatFailedIsNotTriedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		due := func() bool { why, _ := r.due(time.Now()); return why != nil }
		r.replayFailed(errors.New("no connection"), time.Now())
		if !r.replayPauses(time.Now()) || due() {
			t.Errorf("%+v", r)
		}
		r.bad.why = errors.New("bad") // events that are bad do not end the pause
		if !r.replayPauses(time.Now()) {
			t.Errorf("with bad events: %+v", r)
		}
		r.forgotten()
		time.Sleep(time.Second)
		if r.replayPauses(time.Now()) || r.why() == nil {
			t.Errorf("%+v", r)
		}
		if r.replayed(true); due() {
			t.Error("due after a replay that brought all")
		}
		r.replayFailed(errors.New("no connection"), time.Now())
		time.Sleep(time.Second)
		if r.replayed(false); !due() {
			t.Error("not due after a replay that brought the rest only")
		}
	})
}

// An engine whose replays fail at times, and succeed in between, is asked again as soon after each failure; so is one
// that is connected to again.
func TestAReplayThatSucceedsEndsTheLongPauses(t *testing.T) {
	for name, end := range map[string]func(*repair){
		"a replay": func(r *repair) { r.replayed(false) }, "a connection": (*repair).connected,
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRepair(time.Second)
			for range 3 {
				for _, pause := range []time.Duration{1, 2, 4, 8} {
					r.replayFailed(errors.New("no connection"), time.Now())
					if left := time.Until(r.failed.at); left != pause*time.Second {
						t.Errorf("%s: a pause of %v, want %d s", name, left, pause)
					}
					time.Sleep(time.Until(r.failed.at))
					if why, bad := r.due(time.Now()); why == nil || bad {
						t.Errorf("%s: after its pause: %v, %t", name, why, bad)
					}
				}
				end(&r)
			}
		})
	}
}

// That replays failed does not put off a rebuild for bad events, and the other way round.
func TestFailedReplaysAndBadEventsHavePausesOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRepair(time.Second)
		for range 10 {
			r.replayFailed(errors.New("no connection"), time.Now())
		}
		r.bad.why = errors.New("bad")
		if why, bad := r.due(time.Now()); why == nil || !bad {
			t.Error("bad events wait for replays")
		}
		if !r.replayPauses(time.Now()) {
			t.Error("bad events end the pause of replays")
		}
		r.replayed(true)
		if r.replayFailed(errors.New("no connection"), time.Now()); time.Until(r.failed.at) != time.Second {
			t.Errorf("a pause of %v", time.Until(r.failed.at))
		}
	})
}

func TestALineThatSaysTheSameIsWrittenOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rarely
		for n, want := range []int{1, 0, 0, 0, 0, 0, 6, 0} {
			if got := r.due(time.Now()); got != want {
				t.Errorf("line %d: %d, want %d", n, got, want)
			}
			time.Sleep(10 * time.Second)
		}
	})
}
