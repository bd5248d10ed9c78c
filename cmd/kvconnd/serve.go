package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu/cuda"
	"github.com/kvconn/kvconn/internal/cli/routing"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/router/service"
	"github.com/kvconn/kvconn/store/residency/publish"
)

type serveCmd struct {
	Config settings.File `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"YAML file of these settings. Flags and environment override it."`
	config.Serve
}

// Help is shown below the command's summary.
func (*serveCmd) Help() string {
	return `Engines connect to the socket once it is there; "kvconnd config vllm" prints what
they need to be told. SIGHUP has --tenants-file read again. SIGTERM or SIGINT stops the daemon
gracefully, within --stop-timeout; a second one ends it at once. Under systemd use Type=notify:
readiness, state and watchdog are reported.`
}

// Run serves until the context ends.
func (c *serveCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	return logging.Last(std.Err, c.LogFormat, c.serve(ctx, command, resolver, std))
}

func (c *serveCmd) serve(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	// The reader of the log may end first, as tee does of the same Ctrl-C: no reason to skip
	// the orderly stop.
	signal.Ignore(syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGPIPE)
	log := logging.New(std.Err, c.LogLevel, c.LogFormat)
	reload := make(chan struct{}, 1) // one that comes before the store is open waits for that
	defer logging.OnHangups(ctx, func() {
		select {
		case reload <- struct{}{}:
		default:
		}
	})()
	c.EnsureDefaults()
	if err := settings.Check(command, resolver, &c.Serve); err != nil {
		return err
	}
	foreign, _ := settings.CheckEnvironment(command) // checkSettings has found what is misspelt
	settings.WarnForeign(log, foreign)
	o := daemon.Options{
		Dir: c.Dir, Socket: c.Socket, HTTP: c.HTTP, MaxBytes: int64(c.MaxBytes.Bytes), MaxPercent: c.MaxBytes.Percent, LoadTimeout: c.LoadTimeout,
		HostBytes: int64(c.HostBytes), LoadStagingBytes: int64(c.LoadStagingBytes), SaveStagingBytes: int64(c.SaveStagingBytes),
		ForgetSegments: c.ForgetLostSegments, Writers: c.Writers, ReadInFlightBytes: int64(c.ReadInFlightBytes), EventBytes: int64(c.EventBytes),
		ScrubBytesPerS: int64(c.ScrubBytesPerS), PinMaxPercent: c.PinMaxPercent, MinOfferTokens: c.MinOfferTokens,
		PromptsOnly: c.PromptsOnly, NoPrefetch: c.NoPrefetch, PrefillTokensPerS: c.PrefillTokensPerS, StageTimeout: c.StageTimeout,
		StopTimeout: c.StopTimeout, Pprof: c.Pprof, Logger: log, Reload: reload,
	}
	if c.PinMaxPercent == 0 {
		o.PinMaxPercent = -1 // nothing
	}
	o.MinFreeBytes, o.MinFreePercent = int64(c.MinFree.Bytes), c.MinFree.Percent
	o.NoMinFree = c.MinFree.Set && c.MinFree.Bytes == 0 && c.MinFree.Percent == 0
	o.Access, o.HTTPToken = settings.AccessOf(&c.Serve), c.HTTPToken
	o.Publish = publishOptions(&c.Serve)
	o.Record = recordOptions(&c.Serve)
	object, err := settings.ObjectOptions(&c.Serve)
	if err != nil {
		return fmt.Errorf("settings: %w", err) // checkSettings has found it before
	}
	if o.Spans, err = settings.SpansOptions(&c.OTLP); err != nil {
		return fmt.Errorf("settings: %w", err) // checkSettings has found it before
	}
	o.Object = object
	if o.Driver, err = cuda.New(cuda.Options{Library: c.CUDALibrary, Logger: o.Logger}); err != nil {
		return fmt.Errorf("settings of GPUs: %w", err)
	}
	ring, err := settings.LoadKeys(c.KeyFile)
	if err != nil {
		return err
	}
	o.Ring = ring
	if o.Tenants, err = settings.LoadTenants(c.TenantsFile); err != nil {
		return err
	}
	notify, err := sdnotify.FromEnvironment(os.Getenv, os.Getpid())
	if err != nil {
		o.Logger.Warn("the service manager is not told how the daemon does", "err", err,
			"remedy", "check Type=notify and WatchdogSec of the service; unset NOTIFY_SOCKET if there is no service manager")
	}
	defer func() { _ = notify.Close() }()
	o.Notify = notify
	if o.HTTP == "off" {
		o.HTTP = ""
	}
	if limit := hostmemory.LimitHeap(cmp.Or(o.HostBytes, hostmemory.DefaultBytes())); limit > 0 {
		log.Debug("heap is bounded", "bytes", limit)
	}
	return runDaemon(ctx, o, c.Router)
}

// publishOptions are the settings of published events; nil if there are to be none.
func publishOptions(s *config.Serve) *publish.Options {
	if s.PublishEvents == "" {
		return nil
	}
	o := &publish.Options{
		Endpoint: s.PublishEvents, ReplayEndpoint: s.PublishReplay, Topic: s.PublishTopic, Hashes: publish.HashForm(s.PublishHashForm),
	}
	if model := s.PublishModel; model != "" {
		o.Accept = func(_ connector.NamespaceDigest, m *connector.Manifest) bool { return m.Model == model }
	}
	return o
}

// recordOptions are the settings of the trace; nil if there is to be none.
func recordOptions(s *config.Serve) *tracelog.Options {
	if s.RecordTrace == "" {
		return nil
	}
	return &tracelog.Options{Path: s.RecordTrace, MaxBytes: int64(s.RecordTraceBytes), BlockTokens: s.RecordTraceBlockTokens}
}

// localNode is the node of a daemon's own router's ranks that are on its machine and have none in the settings.
const localNode = "local"

// runDaemon runs the node's daemon and, if file names its settings, a router beside it. Ranks of this machine without a
// node are this node's.
func runDaemon(ctx context.Context, o daemon.Options, file string) error {
	if file == "" {
		return daemon.Run(ctx, o)
	}
	c, err := routing.Read(file)
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	ro, err := c.Options(o.Logger.With("part", "router"))
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
			if i.HTTP != "" {
				ro.Discovery.Node, ro.Discovery.NodeURL = localNode, "http://"+i.HTTP
			}
			return service.Run(ctx, ro)
		}
	})
	return g.Wait()
}
