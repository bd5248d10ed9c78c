// Package top is `kvconnd top`: a view of a daemon or a router that fills the terminal.
package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	tea "charm.land/bubbletea/v2" // raw mode, keys, resizing, suspension and the way back from each
	"github.com/alecthomas/kong"
	"golang.org/x/term"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/target"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/locate"
	"github.com/kvconn/kvconn/internal/routerstatus"
)

// minInterval is the shortest time between two looks: more often they would themselves load the daemon.
const minInterval = 100 * time.Millisecond

// Cmd is `kvconnd top`.
type Cmd struct {
	target.DaemonOrRouter
	Interval time.Duration `name:"interval" short:"i" default:"2s" help:"Time between two looks (default 2s)."`
}

// Help is shown below the command's summary.
func (*Cmd) Help() string {
	return `Fills the terminal with what a daemon does now: rates of the last interval, tiers, engines and models; of a router
its requests, ranks and models. q ends it, s changes what the tables are sorted by. Where the output is no terminal it
prints one look and ends.`
}

// Validate reports an interval that would itself load the daemon.
func (c *Cmd) Validate() error {
	if c.Interval < minInterval {
		return fmt.Errorf("--interval is %s: at least %s", c.Interval, minInterval)
	}
	return nil
}

// Run shows the view until a key or a signal ends it.
func (c *Cmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	at := c.At(command, resolver)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends a look that is under way
	take := func() look { return takeLook(ctx, at, c.Token) }
	if !isTerminal(std.In) || !isTerminal(std.Out) {
		fmt.Fprintln(std.Err, "kvconnd: top needs a terminal; this is one look, and 'kvconnd status --watch' prints one after the other")
		return once(std.Out, take())
	}
	program := tea.NewProgram(newModel(take, c.Interval), tea.WithInput(std.In), tea.WithOutput(std.Out), tea.WithoutSignalHandler())
	// Signals end ctx. The program does not get it: it would close its input beside the goroutine that reads it.
	defer context.AfterFunc(ctx, program.Quit)()
	_, err := program.Run()
	return err
}

// once prints one look.
func once(out io.Writer, l look) error {
	if l.err != nil {
		return l.err
	}
	_, err := io.WriteString(out, text(l, look{}, byUse))
	return err
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// look is what a daemon or a router said: one of both, or why neither did.
type look struct {
	daemon *daemon.Status
	router *routerstatus.Status
	err    error
}

func takeLook(ctx context.Context, at locate.Settings, routerToken string) look {
	s, err := at.Status(ctx)
	if router := (*locate.RouterError)(nil); errors.As(err, &router) {
		r, err := routerstatus.Fetch(ctx, router.Address, routerToken)
		return look{router: r, err: err}
	}
	return look{daemon: s, err: err}
}
