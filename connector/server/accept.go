package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// acceptor accepts connections. It keeps one descriptor in reserve: when the process or the
// system has run out of them, it uses that to close waiting connections at once, and their
// clients try again later.
type acceptor struct {
	l       *Listener
	reserve *os.File // nil where there was none left
	opts    *Options
	// starved is set while connections cannot be accepted.
	starved bool
	refused func()
}

// acceptPause is the time between attempts to accept while the system refuses.
const acceptPause = 100 * time.Millisecond

// shedWait bounds the wait for a connection to turn away: it may be gone already.
const shedWait = 10 * time.Millisecond

// next returns the next connection, or an error once the listener is closed or ctx ends.
func (a *acceptor) next(ctx context.Context) (*net.UnixConn, error) {
	for {
		a.refill()
		c, err := a.l.AcceptUnix()
		switch {
		case err == nil:
			if a.starved {
				a.starved = false
				a.opts.Logger.Info("engines can connect again")
			}
			return c, nil
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil, fmt.Errorf("accept on the engine socket: %w", err)
		case errors.Is(err, unix.ECONNABORTED):
			continue // the peer has gone
		}
		if !a.starved {
			a.starved = true
			a.opts.Logger.Error("cannot accept engines' connections; engines that are connected go on, others are turned away until it passes", "err", err,
				"remedy", "raise the daemon's limit of open files (LimitNOFILE, ulimit -n)")
		}
		if outOfDescriptors(err) {
			a.shed()
		}
		pause(ctx, acceptPause)
	}
}

// outOfDescriptors reports whether an error is that the process or the system has none left.
func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// refill takes a descriptor into reserve, if there is none.
func (a *acceptor) refill() {
	if a.reserve == nil {
		if f, err := os.Open(os.DevNull); err == nil {
			a.reserve = f
		}
	}
}

// shed closes all connections that wait to be accepted, with the reserve.
func (a *acceptor) shed() {
	for a.reserve != nil {
		_ = a.reserve.Close()
		a.reserve = nil
		err := a.l.SetDeadline(time.Now().Add(shedWait))
		if err == nil {
			var c *net.UnixConn
			if c, err = a.l.AcceptUnix(); err == nil {
				a.refused()
				_ = c.Close()
			}
			_ = a.l.SetDeadline(time.Time{})
		}
		a.refill()
		if err != nil {
			return
		}
	}
}

func (a *acceptor) close() {
	if a.reserve != nil {
		_ = a.reserve.Close()
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
