package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/target"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/locate"
	"github.com/kvconn/kvconn/internal/routerstatus"
	"github.com/kvconn/kvconn/internal/statustext"
)

// minWatchInterval is the shortest interval of --watch.
const minWatchInterval = 100 * time.Millisecond

type statusCmd struct {
	target.DaemonOrRouter
	Watch    bool          `name:"watch" short:"w" help:"Show the status again and again, with rates, until interrupted."`
	Interval time.Duration `name:"interval" default:"2s" help:"Time between two looks of --watch (default 2s)."`
	JSON     bool          `name:"json" help:"Print the whole status as JSON, with --watch one line each."`
}

// Help is shown below the command's summary.
func (*statusCmd) Help() string {
	return `It shows a router, too, if --http is a router's address, though not with --watch. The exit status is not 0 if no
daemon answers, and if the daemon is unhealthy. With --watch rates are those of the last interval, by the daemon's own clock.`
}

// Validate reports an interval that would itself load the daemon.
func (c *statusCmd) Validate() error {
	if c.Watch && c.Interval < minWatchInterval {
		return fmt.Errorf("--interval is %s: at least %s", c.Interval, minWatchInterval)
	}
	return nil
}

// Run asks the daemon and prints its answer.
func (c *statusCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	at := c.At(command, resolver)
	if c.Watch {
		return c.watch(ctx, at, std.Out)
	}
	s, err := at.Status(ctx)
	if router := (*locate.RouterError)(nil); errors.As(err, &router) {
		return c.router(ctx, router.Address, std.Out)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, s)
	} else {
		err = statustext.Print(std.Out, s, nil)
	}
	if err == nil && !s.Health.OK {
		err = errors.New("the daemon is unhealthy: see the reasons above")
	}
	return err
}

// router asks a router, and prints its answer.
func (c *statusCmd) router(ctx context.Context, addr string, out io.Writer) error {
	s, err := routerstatus.Fetch(ctx, addr, c.Token)
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(out, s)
	} else {
		err = routerstatus.Print(out, s)
	}
	if err == nil && !s.Health.OK {
		err = errors.New("the router is unhealthy: see the reasons above")
	}
	return err
}

// watch shows the status until ctx ends. A daemon that does not answer is shown as such: it
// may come back.
func (c *statusCmd) watch(ctx context.Context, at locate.Settings, out io.Writer) (err error) {
	tick := time.NewTicker(c.Interval)
	defer tick.Stop()
	if c.screen(out) != nil {
		const enter, leave = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l" // the alternate screen without a cursor, and back
		if _, err := io.WriteString(out, enter); err != nil {
			return err
		}
		defer func() {
			_, wrote := io.WriteString(out, leave)
			err = errors.Join(err, wrote)
		}()
	}
	var before *daemon.Status
	for {
		s, err := at.Status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if router := (*locate.RouterError)(nil); errors.As(err, &router) {
			return fmt.Errorf("%w: --watch shows daemons", err)
		}
		var look bytes.Buffer
		if err := c.show(&look, s, before, err); err != nil {
			return err
		}
		if err := c.draw(out, look.String()); err != nil {
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

// screen is the terminal that looks replace each other on, nil if they follow each other.
func (c *statusCmd) screen(out io.Writer) *os.File {
	if f, ok := out.(*os.File); ok && !c.JSON && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// draw writes one look in one piece; on a terminal it replaces the one before.
func (c *statusCmd) draw(out io.Writer, look string) error {
	if f := c.screen(out); f != nil {
		const home, clear = "\x1b[H", "\x1b[J" // the cursor to the top, and from there to the end of the screen
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 1 {
			look = crop(look, width, height-1)
		}
		look = home + clear + look
	}
	_, err := io.WriteString(out, look)
	return err
}

// crop keeps the beginning of a text that a terminal of width columns and height rows can show:
// what scrolls off the top would be the health.
func crop(text string, width, height int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	rows := 0
	for i, line := range lines {
		need := max(1, (utf8.RuneCountInString(line)+width-1)/width)
		if rest := len(lines) - i - 1; rows+need+min(rest, 1) > height {
			return strings.Join(append(lines[:i:i], fmt.Sprintf("(%d more lines)", rest+1)), "\n") + "\n"
		}
		rows += need
	}
	return strings.Join(lines, "\n") + "\n"
}

func (c *statusCmd) show(out io.Writer, s, before *daemon.Status, failed error) error {
	switch {
	case failed != nil && c.JSON:
		return json.NewEncoder(out).Encode(map[string]string{"error": failed.Error()})
	case c.JSON:
		return json.NewEncoder(out).Encode(s)
	case failed != nil:
		_, err := fmt.Fprintf(out, "%v\n\n", failed)
		return err
	}
	if err := statustext.Print(out, s, statustext.Since(before, s)); err != nil {
		return err
	}
	_, err := fmt.Fprintln(out)
	return err
}
