package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
)

// tend looks at the store once per healthInterval, and tells the service manager what it
// sees and that the daemon is alive. The reading goes through the locks that everything
// else needs: a daemon that is stuck on one sends no watchdog message.
func (d *daemon) tend(ctx context.Context) error {
	look := time.NewTicker(healthInterval)
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

// look takes a reading and judges it.
func (d *daemon) look(now time.Time) *reading {
	r := d.read(now)
	d.health.observe(now, &observation{
		Stats: r.store, namespacesOpened: d.backend.namespaces.opened.Load(), namespacesFailed: d.backend.namespaces.failed.Load(),
	})
	d.opening.observe(now, &r.store)
	r.health, r.opening = d.health.health(), d.opening.status(now)
	r.health.Opening = r.opening
	return r
}

// line is the state in one line. It has no figures that always change.
func (d *daemon) line(r *reading) string {
	if !r.health.OK {
		return fmt.Sprintf("unhealthy (%s): %s", r.health.Reasons[0].Code, r.health.Reasons[0].Remedy)
	}
	if r.opening != nil {
		return r.opening.String()
	}
	return fmt.Sprintf("serving %d engines with %d ranks", len(r.engines), len(r.ranks))
}
