// Command kvconnd keeps the KV cache of LLM engines on disk and gives it back. `kvconnd
// serve` runs once per node; the other commands configure engines, look at a daemon, and
// show what it does.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/gpu/libcuda"
	"github.com/kvconn/kvconn/internal/cli/bench"
	"github.com/kvconn/kvconn/internal/cli/cache"
	"github.com/kvconn/kvconn/internal/cli/completion"
	"github.com/kvconn/kvconn/internal/cli/configure"
	"github.com/kvconn/kvconn/internal/cli/help"
	"github.com/kvconn/kvconn/internal/cli/routing"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/cli/top"
	"github.com/kvconn/kvconn/internal/cli/upkeep"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/internal/version"
)

// Exit statuses beside 0 and 1: exitUsage is for a command line that cannot be understood, exitMended for damage that a check
// has found and mended.
const (
	exitUsage  = 2
	exitMended = 3
	// exitInterrupted is what a shell reports for a process that SIGINT ended.
	exitInterrupted = 130
)

type cli struct {
	Version kong.VersionFlag `short:"V" help:"Print the version and exit."`

	Serve      serveCmd         `cmd:"" help:"Run the daemon of this node."`
	Router     routing.Cmd      `cmd:"" help:"Choose the rank for each request, and forward requests to it."`
	Status     statusCmd        `cmd:"" help:"Show what a running daemon does."`
	Top        top.Cmd          `cmd:"" help:"Fill the terminal with what a running daemon or router does now."`
	Cache      cache.Cmd        `cmd:"" help:"List, remove, pin, load and carry what the store of a running daemon holds."`
	Explain    cache.ExplainCmd `cmd:"" help:"Say why a prompt is found in the cache, or is not."`
	Config     configure.Cmd    `cmd:"" help:"Print the settings, or the configuration of an engine."`
	Doctor     doctorCmd        `cmd:"" help:"Look at what an engine needs before it is started."`
	Demo       demoCmd          `cmd:"" help:"Show on this machine what the cache does."`
	Fsck       upkeep.FsckCmd   `cmd:"" help:"Check and repair a store that no daemon has open, or a bucket."`
	GC         upkeep.GCCmd     `cmd:"" name:"gc" help:"Remove from a bucket what is beyond its cap or age, once."`
	Key        upkeep.KeyCmd    `cmd:"" help:"Make keys that records are sealed with."`
	Bench      bench.Cmd        `cmd:"" help:"Measure kvconn on this machine, beside the machine's own limits."`
	Replay     replayCmd        `cmd:"" help:"Replay a request trace through a model of ranks, tiers and routing policies; size a disk."`
	About      versionCmd       `cmd:"" name:"version" help:"Print the version, and what this program was built from."`
	Completion completion.Cmd   `cmd:"" help:"Print a script by which a shell completes command lines."`
	DemoEngine demoEngineCmd    `cmd:"" hidden:"" help:"The demo's engine process."`
	Copier     copierCmd        `cmd:"" hidden:"" help:"The process that holds one GPU's driver."`
}

func main() {
	os.Exit(run(os.Args[1:], &terminal.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}

func run(args []string, std *terminal.Streams) int {
	// The second signal ends the process at once: stop restores the default action.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	args, usage := plainWords(args)
	exit := -1
	resolver := new(settings.Resolver)
	c := new(cli)
	parser, err := newParser(ctx, c, std, resolver, func(code int) { exit = code })
	if err != nil {
		return fail(std, err)
	}
	command, err := parser.Parse(args)
	if exit >= 0 { // --help or --version
		return max(exit, usage)
	}
	if err != nil {
		var usage *kong.ParseError
		if errors.As(err, &usage) {
			text := settings.Explain(usage, resolver)
			for _, format := range []string{c.Serve.LogFormat, c.Router.LogFormat} { // empty for other commands
				if logging.Logged(logging.Last(std.Err, format, errors.New(text))) {
					return exitUsage
				}
			}
			fmt.Fprintf(std.Err, "kvconnd: %s\n", strings.ReplaceAll(text, "\n", "\nkvconnd: "))
			if !errors.As(err, new(settings.FileError)) { // the command line is not to blame for a file
				fmt.Fprintln(std.Err, "Try 'kvconnd --help', or --help after a command.")
			}
			return exitUsage
		}
		return fail(std, err)
	}
	return ended(ctx, std, command.Run())
}

// ended is the exit status of a command that ended with err, which it prints. ctx ends with the process's first signal.
func ended(ctx context.Context, std *terminal.Streams, err error) int {
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(std.Err, "kvconnd: interrupted")
		return exitInterrupted
	}
	return fail(std, err)
}

// plainWords turns what people type into flags: no command at all, which is a mistake, and help with or without a command.
func plainWords(args []string) (flags []string, exit int) {
	switch {
	case len(args) == 0:
		return []string{"--help"}, exitUsage
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help"), 0
	}
	return args, 0
}

// newParser returns the parser of command lines into c. The resolver knows the sources of settings
// afterwards. exit is called by --help and --version, after which parsing goes on.
func newParser(ctx context.Context, c *cli, std *terminal.Streams, resolver *settings.Resolver, exit func(code int)) (*kong.Kong, error) {
	return kong.New(c,
		kong.Name("kvconnd"),
		kong.Description("Keeps the KV cache of LLM engines on local disk, across restarts and engines."),
		kong.Writers(std.Out, std.Err),
		kong.Vars{"version": version.Server(), "cudaLibrary": libcuda.DefaultPath},
		kong.Exit(exit),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(std, resolver),
		kong.Resolvers(resolver),
		kong.PostBuild(help.Group),
	)
}

func fail(std *terminal.Streams, err error) int {
	if logging.Logged(err) {
		return 1
	}
	// Joined errors are lines of their own.
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(std.Err, "kvconnd: %s\n", line)
	}
	if mended := (upkeep.MendedError{}); errors.As(err, &mended) {
		return exitMended
	}
	return 1
}

type versionCmd struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// Run prints the version.
func (c *versionCmd) Run(std *terminal.Streams) error {
	build := version.Describe(libcuda.Built)
	if c.JSON {
		return terminal.PrintJSON(std.Out, build)
	}
	_, err := fmt.Fprintln(std.Out, build)
	return err
}
