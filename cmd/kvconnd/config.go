package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"text/tabwriter"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/locate"
)

type configCmd struct {
	Show   configShowCmd   `cmd:"" default:"withargs" help:"Print every setting of the daemon and where its value comes from."`
	Router configRouterCmd `cmd:"" help:"Print every setting and rank of the router and where its value comes from."`
	VLLM   vllmConfigCmd   `cmd:"" name:"vllm" help:"Print the JSON for vLLM's --kv-transfer-config."`
	SGLang sglangConfigCmd `cmd:"" name:"sglang" help:"Print the flags for SGLang."`
}

// engineSocket are the flags of commands that print what an engine needs to reach the daemon.
type engineSocket struct {
	Config configFile `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"The daemon's YAML file of settings, for its socket."`
	Socket string     `name:"socket" env:"KVCONN_SOCKET" placeholder:"PATH" help:"The daemon's Unix socket. Default: that of the daemon that serves --dir, or of 'kvconnd serve'."`
	Dir    string     `name:"dir" env:"KVCONN_DIR" placeholder:"DIR" help:"The daemon's store directory: its socket is asked for there."`
}

// path is the socket's absolute path. Whoever did not name it is told if nobody listens there.
func (s *engineSocket) path(ctx context.Context, command *kong.Context, resolver *settingsResolver, std *streams) (string, error) {
	path, err := locate.Settings{Socket: s.Socket, Dir: s.Dir}.SocketPath()
	if err != nil || resolver.source(command, "socket").Kind == config.FromFlag {
		return path, err
	}
	if err := locate.Listens(ctx, path); err != nil {
		fmt.Fprintf(std.err, "kvconnd: note: no daemon can be reached at %s now (%v); --socket, --dir or --config say where it is\n", path, err)
	}
	return path, nil
}

type configShowCmd struct {
	Config configFile `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"YAML file of settings."`
	JSON   bool       `name:"json" help:"Print the settings as JSON."`
	Serve  shown      `embed:""`
}

// shown are the settings without their Validate, which the parser would call: wrong settings are
// also shown.
type shown config.Serve

// Help is shown below the command's summary.
func (*configShowCmd) Help() string {
	return `Takes the flags, environment and file that "kvconnd serve" takes and prints what the
daemon would run with. The exit status is not 0 if it would refuse to.`
}

// Run prints the settings, even if they are wrong.
func (c *configShowCmd) Run(ctx *kong.Context, resolver *settingsResolver, std *streams) error {
	settings := config.Serve(c.Serve)
	settings.EnsureDefaults()
	if settings.HostBytes == 0 {
		settings.HostBytes = config.Bytes(hostmemory.DefaultBytes())
	}
	list := config.Settings(settings, func(flag string) config.Source { return resolver.source(ctx, flag) })
	err := errors.Join(printSettings(std.out, list, c.JSON), checkSettings(ctx, resolver, &settings))
	if settings.Router == "" {
		return err
	}
	router, refused := readRouter(settings.Router)
	if refused == nil {
		refused = refusedRouter(router)
	}
	if refused != nil {
		err = errors.Join(err, fmt.Errorf("router: %w", refused))
	}
	return err
}

func printSettings(out io.Writer, list []config.Setting, asJSON bool) error {
	if asJSON {
		return printJSON(out, list)
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

// checkSettings reports what `serve` refuses.
func checkSettings(ctx *kong.Context, resolver *settingsResolver, s *config.Serve) error {
	var room error
	if memory := config.Bytes(hostmemory.AvailableBytes()); s.HostBytes > memory {
		// It is taken as it is needed: the daemon would be killed later.
		room = fmt.Errorf("host_bytes is %s: there are %s of memory, in this machine or container", s.HostBytes, memory)
	}
	access := accessOf(s)
	_, misspelt := checkEnvironment(ctx)
	err := errors.Join(misspelt, s.Validate(), access.Validate(), room)
	if err == nil {
		_, err = objectOptions(s)
	}
	if err != nil {
		return fmt.Errorf("settings: %s", resolver.withSources(ctx, err.Error()))
	}
	return nil
}

// configRouterCmd is `kvconnd config router`.
type configRouterCmd struct {
	Config routerFile  `name:"config" env:"KVCONN_ROUTER_CONFIG" placeholder:"FILE" help:"YAML file of the router's settings, with its ranks."`
	JSON   bool        `name:"json" help:"Print the settings as JSON."`
	Router shownRouter `embed:""`
}

// shownRouter are the settings without their Validate: see [shown].
type shownRouter config.Router

// Help is shown below the command's summary.
func (*configRouterCmd) Help() string {
	return `Takes the flags, environment and file that "kvconnd router" takes and prints what the
router would run with, ranks included. The exit status is not 0 if it would refuse to.`
}

// Run prints the settings, even if they are wrong.
func (c *configRouterCmd) Run(ctx *kong.Context, resolver *settingsResolver, std *streams) error {
	s := config.Router(c.Router)
	s.EnsureDefaults(hostmemory.AvailableBytes())
	list := config.Settings(s, func(flag string) config.Source { return resolver.source(ctx, flag) })
	list = append(list, resolver.lists.Settings(resolver.path)...)
	err := printSettings(std.out, list, c.JSON)
	_, misspelt := checkEnvironment(ctx)
	if refused := errors.Join(misspelt, refusedRouter(&routerCmd{Router: s, fromFile: resolver.lists})); refused != nil {
		return errors.Join(err, fmt.Errorf("settings: %w", refused))
	}
	return err
}

// refusedRouter is why a router would not start with its settings.
func refusedRouter(c *routerCmd) error {
	if err := c.Validate(); err != nil {
		return err
	}
	_, err := c.options(slog.New(slog.DiscardHandler))
	return err
}
