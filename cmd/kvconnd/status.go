package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/kvconn/kvconn/daemon"
)

// minWatchInterval is as often as a daemon may be asked by --watch.
const minWatchInterval = 100 * time.Millisecond

// statusCmd is `kvconnd status`.
type statusCmd struct {
	HTTP     string        `name:"http" placeholder:"ADDR" help:"The daemon's HTTP address. Default: that of the daemon that serves --dir, or 127.0.0.1:9477."`
	Dir      string        `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"Ask the daemon that serves this store directory, whatever its address."`
	Watch    bool          `name:"watch" short:"w" help:"Show the status again and again, with rates, until interrupted."`
	Interval time.Duration `name:"interval" default:"2s" help:"Time between two looks of --watch (default 2s)."`
	JSON     bool          `name:"json" help:"Print the whole status as JSON, with --watch one line each."`
}

// Help is shown below the command's summary.
func (*statusCmd) Help() string {
	return `The exit status is not 0 if no daemon answers, and if the daemon is unhealthy. With --watch
rates are those of the last interval, by the daemon's own clock.`
}

// Validate reports an interval that would be a load of its own.
func (c *statusCmd) Validate() error {
	if c.Watch && c.Interval < minWatchInterval {
		return fmt.Errorf("--interval is %s: at least %s", c.Interval, minWatchInterval)
	}
	return nil
}

// Run asks the daemon and prints its answer.
func (c *statusCmd) Run(ctx context.Context, std *streams) error {
	if c.Watch {
		return c.watch(ctx, std.out)
	}
	s, err := c.fetch(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(std.out, s)
	} else {
		err = printStatus(std.out, s, nil)
	}
	if err == nil && !s.Health.OK {
		err = errors.New("the daemon is unhealthy: see the reasons above")
	}
	return err
}

// fetch asks the daemon, wherever it is now: one that was restarted on a free port is found
// again by its directory.
func (c *statusCmd) fetch(ctx context.Context) (*daemon.Status, error) {
	addr := c.HTTP
	switch {
	case addr != "":
	case c.Dir == "":
		addr = "127.0.0.1:9477"
	default:
		info, err := daemon.ReadInfo(c.Dir)
		if err != nil {
			return nil, err
		}
		if addr = info.HTTP; addr == "" {
			return nil, fmt.Errorf("the daemon that serves %s has no HTTP interface (http: off)", c.Dir)
		}
	}
	return daemon.FetchStatus(ctx, addr)
}

// watch shows the status until ctx ends. A daemon that does not answer is shown as such: it
// may come back.
func (c *statusCmd) watch(ctx context.Context, out io.Writer) error {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	var before *daemon.Status
	clear := ""
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		clear = "\x1b[H\x1b[2J\x1b[3J" // cursor home, clear screen and what was scrolled off
	}
	for {
		s, err := c.fetch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err := c.show(out, clear, s, before, err); err != nil {
			return err
		}
		before = s
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// show prints one look.
func (c *statusCmd) show(out io.Writer, clear string, s, before *daemon.Status, failed error) error {
	switch {
	case failed != nil && c.JSON:
		return json.NewEncoder(out).Encode(map[string]string{"error": failed.Error()})
	case c.JSON:
		return json.NewEncoder(out).Encode(s)
	}
	if _, err := io.WriteString(out, clear); err != nil {
		return err
	}
	if failed != nil {
		_, err := fmt.Fprintf(out, "%v\n\n", failed)
		return err
	}
	if err := printStatus(out, s, ratesSince(before, s)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}
