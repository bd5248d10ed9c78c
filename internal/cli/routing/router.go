// Package routing is `kvconnd router`: its settings as the router takes them.
package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
	"github.com/kvconn/kvconn/router/policy/published"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/service"
)

// Cmd is `kvconnd router`.
type Cmd struct {
	Config settings.RouterFile `name:"config" env:"KVCONN_ROUTER_CONFIG" placeholder:"FILE" help:"YAML file of these settings, with the ranks as the list 'ranks'. Flags and environment override it."`
	config.Router

	// fromFile are the ranks and the discovery of the file.
	fromFile config.Lists
	file     string
}

// Help is shown below the command's summary.
func (*Cmd) Help() string {
	return `Serves decisions (POST /v1/route) and an OpenAI-compatible proxy in front of the ranks; GET
/openapi.yaml describes all of it. SIGTERM or SIGINT turns /readyz to 503; requests are
accepted for another --drain-delay, and those under way may end, within --drain-timeout.`
}

// AfterApply takes the lists of the file.
func (c *Cmd) AfterApply(resolver *settings.Resolver) error {
	c.fromFile, c.file = resolver.Lists(), resolver.Path()
	return nil
}

// Run routes until the context ends.
func (c *Cmd) Run(ctx context.Context, command *kong.Context, std *terminal.Streams) error {
	return logging.Last(std.Err, c.LogFormat, c.route(ctx, command, std))
}

func (c *Cmd) route(ctx context.Context, command *kong.Context, std *terminal.Streams) error {
	signal.Ignore(syscall.SIGPIPE) // as in serve
	defer signal.Reset(syscall.SIGPIPE)
	log := logging.New(std.Err, c.LogLevel, c.LogFormat)
	defer logging.IgnoreHangups(ctx, log)()
	foreign, err := settings.CheckEnvironment(command)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	settings.WarnForeign(log, foreign)
	o, err := c.Options(log)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if limit := hostmemory.LimitHeap(0); limit > 0 {
		log.Debug("heap is bounded", "bytes", limit)
	}
	return service.Run(ctx, o)
}

// Options are the settings as the service takes them.
func (c *Cmd) Options(log *slog.Logger) (service.Options, error) {
	ranks, err := c.ranks()
	if err != nil {
		return service.Options{}, err
	}
	sources, err := discover.ParseAll(c.fromFile.Discovery, c.Discover)
	if err != nil {
		return service.Options{}, err
	}
	memory := hostmemory.AvailableBytes()
	if c.EnsureDefaults(memory); int64(c.IndexBytes) > memory {
		// It is taken as it is needed: the router would be killed later.
		return service.Options{}, fmt.Errorf("index_bytes is %s: there are %s of memory, in this machine or container", c.IndexBytes, config.Bytes(memory).WholeMiB())
	}
	o := service.Options{
		HTTP: c.HTTP, Token: c.Token, EngineKey: c.EngineKey, Ranks: ranks, Discovery: discover.Options{Sources: sources}, Policy: c.policy(), Version: version.Server(), Logger: log,
		Route: route.Options{
			Index: prefix.Options{MaxBytes: int64(c.IndexBytes)}, Load: inflight.Options{AssumeKVReuse: c.AssumeKVReuse, TTL: c.RequestTTL},
			PredictTTL: c.PredictTTL, ApproximateTTL: c.ApproximateTTL, MaxPromptTokens: c.MaxPromptTokens, Logger: log,
			NodeToken: c.NodeToken,
		},
		HealthPath: c.HealthPath, HealthInterval: c.HealthInterval, TokenizeTimeout: c.TokenizeTimeout, MaxBodyBytes: int64(c.MaxBodyBytes),
		MaxTries: c.MaxTries, FirstByteTimeout: c.FirstByteTimeout, IdleTimeout: c.StreamTimeout, DrainTimeout: c.DrainTimeout, DrainDelay: c.DrainDelay,
		RankMetrics: c.RankMetrics,
	}
	if o.Spans, err = settings.SpansOptions((*config.OTLP)(&c.RouterOTLP)); err != nil {
		return service.Options{}, err
	}
	if o.Spans != nil {
		o.Spans.Version = version.Number()
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
func (c *Cmd) ranks() (list []registry.Rank, err error) {
	for i, b := range c.fromFile.Ranks {
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

func (c *Cmd) policy() byname.Options {
	return byname.Options{
		Name:         c.Policy,
		Cost:         policy.CostOptions{DecodeWeight: orNone(c.DecodeWeight), BalanceWeight: orNone(c.BalanceWeight), OverlapLoads: c.OverlapLoads, AlwaysLoad: c.AlwaysLoad},
		KVAware:      published.KVAwareOptions{Beta: orNone(c.Beta), MatchRate: orNone(c.MatchRate)},
		Conversation: published.ConversationOptions{Placement: published.Placement(c.Placement)},
	}
}

// Read reads the router's settings from its file and the environment.
func Read(file string) (*Cmd, error) {
	var alone struct {
		Router Cmd `cmd:""`
	}
	resolver := new(settings.Resolver)
	parser, err := kong.New(&alone, kong.Name("kvconnd"), kong.Writers(io.Discard, io.Discard), kong.Exit(func(int) {}),
		kong.Bind(resolver), kong.Resolvers(resolver))
	if err != nil {
		return nil, err
	}
	_, err = parser.Parse([]string{"router", "--config", file})
	if of := (settings.FileError{}); errors.As(err, &of) {
		return nil, of
	}
	return &alone.Router, err
}

// New is the command with these settings, and lists from a file.
func New(s config.Router, lists config.Lists) *Cmd { return &Cmd{Router: s, fromFile: lists} }

// Refused is why a router would not start with its settings.
func (c *Cmd) Refused() error {
	if err := c.Validate(); err != nil {
		return err
	}
	_, err := c.Options(slog.New(slog.DiscardHandler))
	return err
}

// orNone returns v, and for 0 the -1 that stands for none in options.
func orNone(v float64) float64 {
	if v == 0 {
		return -1
	}
	return v
}
