package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/loglimit"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
)

// ErrStopTimeout says that an orderly stop did not end in time. What had passed a barrier
// is safe; the next start reads the journal instead of the snapshot.
var ErrStopTimeout = errors.New("daemon: stop did not end in time")

// stopMargin is the time that the service manager is asked for beyond the stop's own bound.
const stopMargin = 5 * time.Second

// Run serves until ctx ends, then disconnects the engines, writes accepted saves, and closes the
// store with a snapshot. If that takes longer than o.StopTimeout, because a disk hangs, Run
// returns [ErrStopTimeout]: the caller should end the process, as goroutines of Run may still be
// running.
func Run(ctx context.Context, o Options) error {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	o.Logger = slog.New(loglimit.New(o.Logger.Handler()))
	o.tell(sdnotify.Status("opening the store in " + o.Dir))
	return within(ctx, &o, func() error { return run(ctx, &o) })
}

// within runs f, for a bounded time once ctx has ended.
func within(ctx context.Context, o *Options, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return orStopped(ctx, err)
	case <-ctx.Done():
	}
	o.Logger.Info("stopping: writing accepted saves and the snapshot; a second signal ends the process at once", "at_most", o.StopTimeout)
	o.tell(sdnotify.Stopping, sdnotify.Status("stopping: writing accepted saves and the snapshot"),
		sdnotify.ExtendTimeout(o.StopTimeout+stopMargin))
	timer := time.NewTimer(o.StopTimeout)
	defer timer.Stop()
	// A watchdog would end the stop sooner.
	ping, stopPing := o.watchdog()
	defer stopPing()
	for late := false; !late; {
		select {
		case err := <-done:
			if err = orStopped(ctx, err); err == nil {
				o.Logger.Info("stopped gracefully")
			}
			return err
		case <-ping:
			o.tell(sdnotify.Watchdog)
		case <-timer.C:
			late = true
		}
	}
	o.Logger.Error("the stop did not end in time: the disk is slow or hangs; what had passed a barrier is safe",
		"stop_timeout", o.StopTimeout, "remedy", "look for a hung device in the kernel's log; raise stop_timeout if the disk is only slow")
	return fmt.Errorf("%w: %s have passed", ErrStopTimeout, o.StopTimeout)
}

// orStopped is err, or nil if err only says that the stop came while the store was being opened.
func orStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// watchdog ticks as often as the service manager's watchdog needs; never if there is none.
func (o *Options) watchdog() (tick <-chan time.Time, stop func()) {
	w := o.Notify.WatchdogInterval()
	if w <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(max(w/2, time.Millisecond)) // as sd_watchdog_enabled(3) advises
	return t.C, t.Stop
}

// tell sends assignments to the service manager. A failure does not stop the daemon.
func (o *Options) tell(assignments ...string) {
	if err := o.Notify.Send(assignments...); err != nil {
		o.Logger.Warn("the service manager cannot be told how the daemon does", "err", err,
			"remedy", "check NotifyAccess and NOTIFY_SOCKET of the service")
	}
}
