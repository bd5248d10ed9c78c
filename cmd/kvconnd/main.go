// Command kvconnd keeps the KV cache of LLM engines on disk and gives it back. `kvconnd
// serve` runs once per node; the other commands configure engines, look at a daemon, and
// show what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/internal/daemon"
)

// exitUsage is the exit status for a command line that cannot be understood.
const exitUsage = 2

type cli struct {
	Version kong.VersionFlag `short:"V" help:"Print the version and exit."`

	Serve      serveCmd      `cmd:"" help:"Run the daemon of this node."`
	Router     routerCmd     `cmd:"" help:"Choose the rank for each request, and forward requests to it."`
	Status     statusCmd     `cmd:"" help:"Show what a running daemon does."`
	Config     configCmd     `cmd:"" help:"Print the settings, or the configuration of an engine."`
	Doctor     doctorCmd     `cmd:"" help:"Look at what an engine needs before it is started."`
	Demo       demoCmd       `cmd:"" help:"Show on this machine what the cache does."`
	Fsck       fsckCmd       `cmd:"" help:"Check and repair a store that no daemon has open, or a bucket."`
	GC         gcCmd         `cmd:"" name:"gc" help:"Remove from a bucket what is beyond its cap or age, once."`
	Key        keyCmd        `cmd:"" help:"Make keys that records are sealed with."`
	Bench      benchCmd      `cmd:"" help:"Measure kvconn on this machine, beside the machine's own limits."`
	Replay     replayCmd     `cmd:"" help:"Replay a request trace through a model of ranks, tiers and routing policies; size a disk."`
	DemoEngine demoEngineCmd `cmd:"" hidden:"" help:"The demo's engine process."`
	Copier     copierCmd     `cmd:"" hidden:"" help:"The process that holds one GPU's driver."`
}

// streams are the command's standard streams, a seam for tests.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

func main() {
	os.Exit(run(os.Args[1:], &streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}

func run(args []string, std *streams) int {
	// The second signal ends the process at once: stop restores the default action.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	exit := -1
	resolver := new(settingsResolver)
	parser, err := newParser(ctx, new(cli), std, resolver, func(code int) { exit = code })
	if err != nil {
		return fail(std, err)
	}
	command, err := parser.Parse(args)
	if exit >= 0 { // --help or --version
		return exit
	}
	if err != nil {
		var usage *kong.ParseError
		if errors.As(err, &usage) {
			fmt.Fprintf(std.err, "kvconnd: %v\nTry 'kvconnd --help', or --help after a command.\n", explain(usage, resolver))
			return exitUsage
		}
		return fail(std, err)
	}
	if err := command.Run(); err != nil {
		return fail(std, err)
	}
	return 0
}

// newParser returns the parser of command lines into c. The resolver knows the sources of settings
// afterwards. exit is called by --help and --version, after which parsing goes on.
func newParser(ctx context.Context, c *cli, std *streams, resolver *settingsResolver, exit func(code int)) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("kvconnd"),
		kong.Description("Keeps the KV cache of LLM engines on local disk, across restarts and engines."),
		kong.Writers(std.out, std.err),
		kong.Vars{"version": daemon.Version, "cudaLibrary": libcuda.DefaultPath},
		kong.Exit(exit),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, resolver),
		kong.Resolvers(resolver),
	)
}

func fail(std *streams, err error) int {
	fmt.Fprintf(std.err, "kvconnd: %v\n", err)
	return 1
}
