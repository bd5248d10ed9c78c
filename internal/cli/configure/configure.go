// Package configure is `kvconnd config`: it prints the settings of daemon and router, and what engines need to be told.
package configure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/routing"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/locate"
)

// Cmd is `kvconnd config`.
type Cmd struct {
	Show   showCmd   `cmd:"" default:"withargs" help:"Print every setting of the daemon and where its value comes from."`
	Router routerCmd `cmd:"" help:"Print every setting and rank of the router and where its value comes from."`
	VLLM   vllmCmd   `cmd:"" name:"vllm" help:"Print the JSON for vLLM's --kv-transfer-config."`
	K8s    k8sCmd    `cmd:"" name:"k8s" help:"Print the patch that connects a Deployment of vLLM in Kubernetes."`
	SGLang sglangCmd `cmd:"" name:"sglang" help:"Print the flags for SGLang."`
	Schema schemaCmd `cmd:"" help:"Print the JSON Schema of a settings file, for editors."`
}

// engineSocket are the flags of commands that print what an engine needs to reach the daemon.
type engineSocket struct {
	Config settings.File `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"The daemon's YAML file of settings, for its socket."`
	Socket string        `name:"socket" env:"KVCONN_SOCKET" placeholder:"PATH" help:"The daemon's Unix socket. Default: that of the daemon that serves --dir, or of 'kvconnd serve'."`
	Dir    string        `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"The daemon's store directory: its socket is asked for there."`
}

// path is the socket's absolute path. Whoever did not name it is told if nobody listens there.
func (s *engineSocket) path(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) (string, error) {
	path, err := locate.Settings{Socket: s.Socket, Dir: s.Dir}.SocketPath()
	if err != nil || resolver.Source(command, "socket").Kind == config.FromFlag {
		return path, err
	}
	if err := locate.Listens(ctx, path); err != nil {
		fmt.Fprintf(std.Err, "kvconnd: note: no daemon can be reached at %s now (%v); --socket, --dir or --config say where it is\n", path, err)
	}
	return path, nil
}

type showCmd struct {
	Config settings.File `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"YAML file of settings."`
	JSON   bool          `name:"json" help:"Print the settings as JSON."`
	Serve  shown         `embed:""`
}

// shown are the settings without their Validate, which the parser would call: wrong settings are
// also shown.
type shown config.Serve

// Help is shown below the command's summary.
func (*showCmd) Help() string {
	return `Takes the flags, environment and file that "kvconnd serve" takes and prints what the
daemon would run with. The exit status is not 0 if it would refuse to.`
}

// Run prints the settings, even if they are wrong.
func (c *showCmd) Run(ctx *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	s := config.Serve(c.Serve)
	s.EnsureDefaults()
	var defaults daemon.Options // those that depend on the machine
	defaults.EnsureDefaults()
	s.HostBytes = cmp.Or(s.HostBytes, config.Bytes(defaults.HostBytes))
	s.EventBytes = cmp.Or(s.EventBytes, config.Bytes(defaults.EventBytes))
	list := config.Settings(s, func(flag string) config.Source { return resolver.Source(ctx, flag) })
	for i := range list {
		if list[i].Key == "min_free" {
			list[i].Value = cmp.Or(list[i].Value, "the larger of 5% and 10GiB") // of a file system that need not be there yet
		}
	}
	err := errors.Join(printSettings(std.Out, list, c.JSON), settings.Check(ctx, resolver, &s))
	if s.Router == "" {
		return err
	}
	router, refused := routing.Read(s.Router)
	if refused == nil {
		refused = router.Refused()
	}
	if refused != nil {
		err = errors.Join(err, fmt.Errorf("router: %w", refused))
	}
	return err
}

func printSettings(out io.Writer, list []config.Setting, asJSON bool) error {
	if asJSON {
		return terminal.PrintJSON(out, list)
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "SETTING\tVALUE\tSOURCE\n")
	for _, s := range list {
		value := s.Value
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.Key, value, s.From)
	}
	return w.Flush()
}

// routerCmd is `kvconnd config router`.
type routerCmd struct {
	Config settings.RouterFile `name:"config" env:"KVCONN_ROUTER_CONFIG" placeholder:"FILE" help:"YAML file of the router's settings, with its ranks."`
	JSON   bool                `name:"json" help:"Print the settings as JSON."`
	Router shownRouter         `embed:""`
}

// shownRouter are the settings without their Validate: see [shown].
type shownRouter config.Router

// Help is shown below the command's summary.
func (*routerCmd) Help() string {
	return `Takes the flags, environment and file that "kvconnd router" takes and prints what the
router would run with, ranks included. The exit status is not 0 if it would refuse to.`
}

// Run prints the settings, even if they are wrong.
func (c *routerCmd) Run(ctx *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	s := config.Router(c.Router)
	s.EnsureDefaults(hostmemory.AvailableBytes())
	list := config.Settings(s, func(flag string) config.Source { return resolver.Source(ctx, flag) })
	lists := resolver.Lists()
	list = append(list, lists.Settings(resolver.Path())...)
	err := printSettings(std.Out, list, c.JSON)
	_, misspelt := settings.CheckEnvironment(ctx)
	if refused := errors.Join(misspelt, routing.New(s, resolver.Lists()).Refused()); refused != nil {
		return errors.Join(err, fmt.Errorf("settings: %w", refused))
	}
	return err
}
