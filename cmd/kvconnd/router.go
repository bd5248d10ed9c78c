package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
	"github.com/kvconn/kvconn/router/policy/published"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/service"
)

// routerCmd is `kvconnd router`.
type routerCmd struct {
	Config routerFile `name:"config" env:"KVCONN_ROUTER_CONFIG" placeholder:"FILE" help:"YAML file of these settings, with the ranks as the list 'ranks'. Flags and environment go before it."`
	config.Router

	// fromFile are the ranks of the file.
	fromFile []json.RawMessage
	file     string
}

// Help is shown below the command's summary.
func (*routerCmd) Help() string {
	return `Serves decisions (POST /v1/route) and an OpenAI-compatible proxy in front of the ranks; GET
/openapi.yaml describes all of it. SIGTERM or SIGINT turns /readyz to 503; requests are
accepted for another --drain-delay, and those under way may end, within --drain-timeout.`
}

// AfterApply takes the ranks of the file.
func (c *routerCmd) AfterApply(resolver *settingsResolver) error {
	c.fromFile, c.file = resolver.ranks, resolver.path
	return nil
}

// Run routes until the context ends.
func (c *routerCmd) Run(ctx context.Context, command *kong.Context, std *streams) error {
	return logging.Last(std.err, c.LogFormat, c.route(ctx, command, std))
}

func (c *routerCmd) route(ctx context.Context, command *kong.Context, std *streams) error {
	signal.Ignore(syscall.SIGPIPE) // as in serve
	defer signal.Reset(syscall.SIGPIPE)
	log := logging.New(std.err, c.LogLevel, c.LogFormat)
	defer logging.IgnoreHangups(ctx, log)()
	foreign, err := checkEnvironment(command)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	warnForeign(log, foreign)
	o, err := c.options(log)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return service.Run(ctx, o)
}

// options are the settings as the service takes them.
func (c *routerCmd) options(log *slog.Logger) (service.Options, error) {
	ranks, err := c.ranks()
	if err != nil {
		return service.Options{}, err
	}
	memory := hostmemory.AvailableBytes()
	if c.EnsureDefaults(memory); int64(c.IndexBytes) > memory {
		// It is taken as it is needed: the router would be killed later.
		return service.Options{}, fmt.Errorf("index_bytes is %s: there are %s of memory, in this machine or container", c.IndexBytes, config.Bytes(memory))
	}
	o := service.Options{
		HTTP: c.HTTP, Token: c.Token, EngineKey: c.EngineKey, Ranks: ranks, Policy: c.policy(), Version: version.Server(), Logger: log,
		Route: route.Options{
			Index: prefix.Options{MaxBytes: int64(c.IndexBytes)}, Load: inflight.Options{AssumeKVReuse: c.AssumeKVReuse, TTL: c.RequestTTL},
			PredictTTL: c.PredictTTL, ApproximateTTL: c.ApproximateTTL, MaxPromptTokens: c.MaxPromptTokens, Logger: log,
			NodeToken: c.NodeToken,
		},
		HealthPath: c.HealthPath, HealthInterval: c.HealthInterval, TokenizeTimeout: c.TokenizeTimeout, MaxBodyBytes: int64(c.MaxBodyBytes),
		MaxTries: c.MaxTries, FirstByteTimeout: c.FirstByteTimeout, IdleTimeout: c.StreamTimeout, DrainTimeout: c.DrainTimeout, DrainDelay: c.DrainDelay,
	}
	if c.HealthInterval == 0 {
		o.HealthInterval = -1
	}
	if c.DrainDelay == 0 {
		o.DrainDelay = -1
	}
	checked := o
	checked.EnsureDefaults()
	return o, checked.Validate()
}

// ranks are those of the file, then those of flags.
func (c *routerCmd) ranks() (list []registry.Rank, err error) {
	for i, b := range c.fromFile {
		r, err := registry.Parse(b)
		if err != nil {
			return nil, fmt.Errorf("%s: ranks[%d]: %w", cmp.Or(c.file, "file"), i, err)
		}
		list = append(list, r)
	}
	for _, text := range c.Ranks {
		r, err := registry.ParseFlag(text)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

func (c *routerCmd) policy() byname.Options {
	return byname.Options{
		Name:         c.Policy,
		Cost:         policy.CostOptions{DecodeWeight: orNone(c.DecodeWeight), BalanceWeight: orNone(c.BalanceWeight), OverlapLoads: c.OverlapLoads, AlwaysLoad: c.AlwaysLoad},
		KVAware:      published.KVAwareOptions{Beta: orNone(c.Beta), MatchRate: orNone(c.MatchRate)},
		Conversation: published.ConversationOptions{Placement: published.Placement(c.Placement)},
	}
}

// readRouter reads the router's settings from its file and the environment.
func readRouter(file string) (*routerCmd, error) {
	c := new(cli)
	parser, err := newParser(context.Background(), c, new(streams), new(settingsResolver), func(int) {})
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse([]string{"router", "--config", file})
	if of := (fileError{}); errors.As(err, &of) {
		return nil, of
	}
	return &c.Router, err
}

// localNode is the node of a daemon's own router's ranks that have none in the settings.
const localNode = "local"

// runDaemon runs the node's daemon and, if file names its settings, a router beside it. Ranks without a
// node are this node's.
func runDaemon(ctx context.Context, o daemon.Options, file string) error {
	if file == "" {
		return daemon.Run(ctx, o)
	}
	c, err := readRouter(file)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	ro, err := c.options(o.Logger.With("part", "router"))
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	if ro.Listener, err = net.Listen("tcp", ro.HTTP); err != nil {
		return fmt.Errorf("listen for the router on %s: %w", ro.HTTP, err)
	}
	ro.Route.NodeToken = cmp.Or(ro.Route.NodeToken, o.HTTPToken)
	ready, told := make(chan daemon.Info, 1), o.Ready
	o.Ready = func(i daemon.Info) {
		ready <- i
		if told != nil {
			told(i)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return daemon.Run(ctx, o) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return ro.Listener.Close()
		case i := <-ready:
			for at := range ro.Ranks {
				if r := &ro.Ranks[at]; r.Node == "" && i.HTTP != "" {
					r.Node, r.NodeURL = localNode, "http://"+i.HTTP
				}
			}
			return service.Run(ctx, ro)
		}
	})
	return g.Wait()
}
