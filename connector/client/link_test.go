package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// The table at [state], row by row.
func TestEachErrorHasItsPause(t *testing.T) {
	o := testOptions("")
	o.CallTimeout, o.RetryInterval = 2*time.Second, 3*time.Second
	o.EnsureDefaults()
	answer := &answeredError{connector.ErrBadRequest}
	for _, tc := range []struct {
		name  string
		from  state
		err   error
		to    state
		pause time.Duration
	}{
		{"call without an answer", connected, context.DeadlineExceeded, hung, hungPause * o.CallTimeout},
		{"broken call", connected, connector.ErrProtocol, absent, 0},
		{"attempt without an answer", idle, context.DeadlineExceeded, hung, hungPause * o.CallTimeout},
		{"refused attempt", absent, fmt.Errorf("register: %w", answer), refused, refusedPause * o.RetryInterval},
		{"attempt that is to be repeated", absent, fmt.Errorf("register: %w", &answeredError{connector.ErrAgain}), putOff, o.RetryInterval},
		{"other version", hung, connector.ErrVersion, refused, refusedPause * o.RetryInterval},
		{"failed attempt", refused, fs.ErrNotExist, absent, o.RetryInterval},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := link{opts: o, state: tc.from}
			if tc.from == connected { // by a caller that did not wait for the end of a pause
				l.enter(refused)
				l.enter(connected)
			}
			before := time.Now()
			l.enter(stateAfter(tc.err))
			if pause := max(0, l.retryAt.Sub(before)); l.state != tc.to || pause != tc.pause {
				t.Errorf("%s: state %d for %s, want %d for %s", tc.name, l.state, pause, tc.to, tc.pause)
			}
		})
	}
}

// What is put off for long costs the daemon a line in its log each time.
func TestADaemonThatPutsOffIsAskedLessAndLess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := link{opts: testOptions("")}
		l.opts.EnsureDefaults()
		for range 2 {
			for i, want := range []time.Duration{1, 2, 4, 8, 16, refusedPause, refusedPause} {
				l.enter(putOff)
				if pause := time.Until(l.retryAt); pause != want*l.opts.RetryInterval {
					t.Errorf("attempt %d: %s, want %d retry intervals", i, pause, want)
				}
			}
			l.enter(connected)
		}
	})
}

// A pause ends with the attempt that succeeds, not after it.
func TestALostConnectionIsReplacedAtOnce(t *testing.T) {
	o := testOptions("")
	o.RetryInterval = time.Hour
	o.EnsureDefaults()
	for _, lost := range []state{idle, absent} {
		l := link{opts: o, state: idle}
		l.enter(refused)
		l.enter(connected) // by a call that does not wait
		if l.enter(lost); time.Now().Before(l.retryAt) {
			t.Errorf("state %d: the next attempt is in %s", lost, time.Until(l.retryAt))
		}
	}
}

// A daemon that is not there is tried once an interval, unless a caller needs it now.
func TestAbsentDaemonIsTriedOnceAnInterval(t *testing.T) {
	o := testOptions(t.TempDir() + "/none")
	o.RetryInterval = time.Hour
	o.EnsureDefaults()
	synctest.Test(t, func(t *testing.T) {
		l := link{opts: o}
		for i, tc := range []struct {
			force, tried bool
			wait         time.Duration
		}{
			{false, true, 0}, {false, false, time.Hour - 1}, {true, true, 0}, {false, false, time.Hour - 1}, {false, true, 1},
		} {
			time.Sleep(tc.wait)
			err := l.ensure(t.Context(), tc.force)
			if tried := !errors.Is(err, errOffline); tried != tc.tried || err == nil {
				t.Errorf("call %d: %v, tried %v, want %v", i, err, tried, tc.tried)
			}
		}
	})
}
