package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// server is the state of one Run.
type server struct {
	opts     *Options
	router   *route.Router
	proxy    *proxy.Proxy
	tokens   *tokenize.Client
	engines  *http.Client // without a timeout of its own
	checks   *checker
	started  time.Time
	draining atomic.Bool
	patching sync.Mutex // held while a rank's description is read, changed and put back
	decided  decisionTimes
}

// Run serves until ctx ends, then lets the requests under way finish, for a bounded time.
func Run(ctx context.Context, o Options) error {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	s, err := newServer(&o)
	if err != nil {
		return err
	}
	defer s.router.Close()
	if err := s.router.Add(o.Ranks...); err != nil {
		return err
	}
	l := o.Listener
	if l == nil {
		if l, err = net.Listen("tcp", o.HTTP); err != nil {
			return fmt.Errorf("listen for the router on %s: %w", o.HTTP, err)
		}
	}
	return s.serve(ctx, l)
}

func newServer(o *Options) (*server, error) {
	if _, err := route.NewPolicy(o.Policy); err != nil {
		return nil, err
	}
	o.Route.Policy = func() policy.Policy {
		p, err := route.NewPolicy(o.Policy)
		if err != nil { // checked above
			panic(err)
		}
		return p
	}
	if o.Transport == nil {
		o.Transport = proxy.NewTransport()
	}
	router, err := route.New(o.Route)
	if err != nil {
		return nil, err
	}
	s := &server{opts: o, router: router, started: time.Now(), engines: &http.Client{Transport: o.Transport}, decided: newDecisionTimes()}
	s.tokens = &tokenize.Client{HTTP: s.engines, Timeout: o.TokenizeTimeout, MaxTokens: o.Route.MaxPromptTokens}
	if o.EngineKey != "" {
		s.tokens.Header = http.Header{"Authorization": {"Bearer " + o.EngineKey}}
	}
	s.checks = newChecker(router, o)
	s.proxy, err = proxy.New(proxy.Options{
		Router: timed{router, &s.decided}, Tokens: s.tokens, Engines: router.ReadyEndpoints, Failed: s.failed, Check: s.check,
		MaxBodyBytes: o.MaxBodyBytes, MaxTries: o.MaxTries, FirstByteTimeout: o.FirstByteTimeout, IdleTimeout: o.IdleTimeout,
		KeepAuthorization: o.Token == "" && o.EngineKey == "", EngineKey: o.EngineKey, Transport: o.Transport, Logger: o.Logger,
	})
	if err != nil {
		router.Close()
		return nil, err
	}
	return s, nil
}

// failed hears of ranks that failed a request.
func (s *server) failed(rank int32, err error) {
	if s.opts.HealthInterval >= 0 {
		s.checks.failed(rank, err)
	}
}

// check asks a rank whether it is well.
func (s *server) check(ctx context.Context, rank int32) error {
	info, ok := s.router.Rank(rank)
	if !ok {
		return route.ErrUnknownRank
	}
	if s.opts.HealthInterval < 0 {
		return nil
	}
	return s.checks.check(ctx, info.Spec.Endpoint)
}

// serve answers on l until ctx ends and what is under way has ended.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	defer func() { _ = g.Wait() }() // the checks end with ctx
	defer cancel()
	if s.opts.HealthInterval >= 0 {
		g.Go(func() error { s.checks.run(ctx); return nil })
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { stopped <- s.drain(h) })
	ranks := 0
	for _, ids := range s.router.Endpoints() {
		ranks += len(ids)
	}
	s.opts.Logger.Info("the router is ready", "http", l.Addr().String(), "ranks", ranks, "policy", s.opts.Policy.Name)
	if s.opts.Ready != nil {
		s.opts.Ready(l.Addr().String())
	}
	err := h.Serve(l)
	if !stop() {
		return <-stopped // Serve returns as soon as the stop begins
	}
	return fmt.Errorf("serve the router: %w", err)
}

// drain ends a server in order.
func (s *server) drain(h *http.Server) error {
	s.draining.Store(true)
	s.opts.Logger.Info("the router stops: waiting for requests under way", "in_flight", s.proxy.Stats().InFlight, "at_most", s.opts.DrainTimeout)
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.DrainTimeout)
	defer cancel()
	err := h.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		s.opts.Logger.Warn("requests did not end in time and are broken off", "in_flight", s.proxy.Stats().InFlight)
		_ = h.Close()
		return nil
	}
	return err
}
