package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/demo"
)

type demoCmd struct {
	Keep  string `name:"keep" placeholder:"DIR" help:"Leave the store in this directory, which must be empty or missing."`
	Nodes int    `name:"nodes" default:"1" enum:"1,2" help:"2 shows two nodes that share the cache through a bucket, with an S3 server of the demo's own."`
	JSON  bool   `name:"json" help:"Print the result as JSON."`
}

// Help is shown below the command's summary.
func (*demoCmd) Help() string {
	return `Runs a daemon and a small real engine as processes of their own, has conversations
that share a long system prompt, stops both, starts both, has the same conversations
again, and compares. Then it flips a bit on disk. It takes less than a minute and needs
no network, no GPU and no other program. The exit status is not 0 unless every answer was
the same with the cache as without.

With --nodes 2 it runs two daemons with a disk each, and an S3 server in this process: node B answers
with what node A computed, goes on while the server is down, and node A recovers after its disk is wiped.`
}

// Run runs the demo and prints its report.
func (c *demoCmd) Run(ctx context.Context, std *terminal.Streams) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o := demo.Options{Executable: executable, Keep: c.Keep, Progress: std.Err}
	var report interface {
		Print(out io.Writer) error
		OK() bool
	}
	switch {
	case c.Nodes == 1:
		report, err = demo.Run(ctx, o)
	case c.Keep != "":
		err = errors.New("--keep is for one node")
	default:
		report, err = demo.RunNodes(ctx, o)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, report)
	} else {
		err = report.Print(std.Out)
	}
	if err == nil && !report.OK() {
		err = errors.New("the demo failed: an answer differs, did not come from the cache, or the flipped bit was not noticed")
	}
	return err
}

// demoEngineCmd is the demo's engine process. It serves the demo only, and is hidden.
type demoEngineCmd struct {
	Socket        string `name:"socket" required:"" help:"The daemon's Unix socket."`
	PrefixCaching bool   `name:"prefix-caching" help:"Keep blocks in the engine's own memory, too."`
}

// Run serves prompts from standard input.
func (c *demoEngineCmd) Run(ctx context.Context, std *terminal.Streams) error {
	return demo.ServeEngine(ctx, demo.EngineOptions{
		Socket: c.Socket, PrefixCaching: c.PrefixCaching, Logger: slog.New(slog.NewTextHandler(std.Err, nil)),
	}, std.In, std.Out)
}
