package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
)

// tend looks at the store once per [health.Interval], and tells the service manager the state
// and that the daemon is alive. The reading takes the locks that everything else needs, so a
// daemon that is stuck on one sends no watchdog message.
func (d *daemon) tend(ctx context.Context) error {
	look := time.NewTicker(health.Interval)
	defer look.Stop()
	ping, stopPing := d.opts.watchdog()
	defer stopPing()
	told := ""
	for {
		line := d.line(d.look(time.Now()))
		if line != told {
			told = line
			d.opts.tell(sdnotify.Status(line))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		case <-ping:
			d.look(time.Now())
			d.opts.tell(sdnotify.Watchdog)
		}
	}
}

func (d *daemon) look(now time.Time) *reading {
	r := d.read(now)
	d.health.Observe(now, &health.Observation{
		Stats: r.store, NamespacesOpened: d.backend.opened.Load(), NamespacesFailed: d.backend.failed.Load(),
	})
	d.opening.Observe(now, &r.store)
	r.health, r.opening = d.health.State(), d.opening.Status(now)
	r.health.Opening = r.opening
	return r
}

// line is the state in one line, without figures that always change.
func (d *daemon) line(r *reading) string {
	if !r.health.OK {
		return fmt.Sprintf("unhealthy (%s): %s", r.health.Reasons[0].Code, r.health.Reasons[0].Remedy)
	}
	if r.opening != nil {
		return r.opening.String()
	}
	return fmt.Sprintf("serving %d engines with %d ranks", len(r.engines), len(r.ranks))
}

const (
	// openingTick is how often the service manager hears about an opening.
	openingTick = time.Second
	// openingExtend is the time that it is asked for, again and again while there is
	// progress: more than the largest file of a store takes to read.
	openingExtend = 2 * time.Minute
)

// tendOpening reports the progress of the opening to the service manager until ctx ends, and asks
// for more time as long as there is progress. The manager's watchdog starts with readiness.
func (d *daemon) tendOpening(ctx context.Context) {
	tick := time.NewTicker(openingTick)
	defer tick.Stop()
	told := ""
	for {
		now := time.Now()
		if s := d.opening.Status(now); s != nil {
			if line := s.String(); line != told {
				told = line
				d.opts.tell(sdnotify.Status(line))
			}
			if !d.opening.Stuck(now) {
				d.opts.tell(sdnotify.ExtendTimeout(openingExtend))
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
