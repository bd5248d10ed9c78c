package main

import (
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

	fromFile []json.RawMessage
}

// Help is shown below the command's summary.
func (*routerCmd) Help() string {
	return `Serves decisions (POST /v1/route) and an OpenAI-compatible proxy in front of the ranks; GET
/openapi.yaml describes all of it. SIGTERM or SIGINT lets the requests under way end, within
--drain-timeout.`
}

// AfterApply takes the ranks of the file.
func (c *routerCmd) AfterApply(resolver *settingsResolver) error {
	c.fromFile = resolver.ranks
	return nil
}

// Run routes until the context ends.
func (c *routerCmd) Run(ctx context.Context, command *kong.Context, std *streams) error {
	signal.Ignore(syscall.SIGPIPE) // as in serve
	defer signal.Reset(syscall.SIGPIPE)
	if err := checkEnvironment(command); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	o, err := c.options(newLogger(std, c.LogLevel, c.LogFormat))
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
	o := service.Options{
		HTTP: c.HTTP, Token: c.Token, EngineKey: c.EngineKey, Ranks: ranks, Policy: c.policy(), Version: daemon.Version, Logger: log,
		Route: route.Options{
			Index: prefix.Options{MaxBytes: int64(c.IndexBytes)}, Load: inflight.Options{AssumeKVReuse: c.AssumeKVReuse, TTL: c.RequestTTL},
			PredictTTL: c.PredictTTL, ApproximateTTL: c.ApproximateTTL, MaxPromptTokens: c.MaxPromptTokens, Logger: log,
		},
		HealthPath: c.HealthPath, HealthInterval: c.HealthInterval, TokenizeTimeout: c.TokenizeTimeout, MaxBodyBytes: int64(c.MaxBodyBytes),
		MaxTries: c.MaxTries, FirstByteTimeout: c.FirstByteTimeout, IdleTimeout: c.StreamTimeout, DrainTimeout: c.DrainTimeout,
	}
	if c.HealthInterval == 0 {
		o.HealthInterval = -1
	}
	checked := o
	checked.EnsureDefaults()
	return o, checked.Validate()
}

// ranks are those of the file, then those of flags.
func (c *routerCmd) ranks() (list []registry.Rank, err error) {
	for _, b := range c.fromFile {
		r, err := registry.Parse(b)
		if err != nil {
			return nil, err
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
		Cost:         policy.CostOptions{DecodeWeight: orNone(c.DecodeWeight), BalanceWeight: orNone(c.BalanceWeight), OverlapLoads: c.OverlapLoads},
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
