package service

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/internal/history"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/byname"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/route"
	"github.com/kvconn/kvconn/router/tokenize"
)

// server is the state of one Run.
type server struct {
	opts     *Options
	router   timed
	times    *observe.Requests
	found    *discover.Discovery
	proxy    *proxy.Proxy
	spans    *spans.Tracer // nil if no traces are sent
	reader   *front.Reader
	engines  *http.Client // without a timeout of its own
	checks   *checker
	history  *history.Recorder
	started  time.Time
	draining atomic.Bool
	told     atomic.Bool // some client of POST /v1/route has reported the end of a prefill
	patching sync.Mutex  // held while a rank's description is read, changed and put back, or its id is chosen
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
	defer s.spans.Close() // last: what the stop ends has spans too
	defer s.router.Close()
	ranks := slices.Clone(o.Ranks)
	if without := o.Discovery.Localize(ranks); o.Discovery.Node != "" && len(without) > 0 {
		o.Logger.Warn("ranks on other machines have no node: nothing on disk counts for them", "ranks", without,
			"remedy", "give them the node and node_url of the kvconnd on their machine")
	}
	if err := s.router.Add(ranks...); err != nil {
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
	o.Route.Policy = func() policy.Policy {
		p, err := byname.New(o.Policy)
		if err != nil { // checked by Validate
			panic(err)
		}
		return p
	}
	transport := proxy.NewTransport()
	router, err := route.New(o.Route)
	if err != nil {
		return nil, err
	}
	s := &server{opts: o, router: newTimed(router), times: observe.NewRequests(), started: time.Now(), engines: &http.Client{Transport: transport}}
	tokens := &tokenize.Client{HTTP: s.engines, Timeout: o.TokenizeTimeout, MaxTokens: o.Route.MaxPromptTokens}
	if o.EngineKey != "" {
		tokens.Header = http.Header{"Authorization": {"Bearer " + o.EngineKey}}
	}
	s.reader = &front.Reader{
		Tokens: tokens, Engines: router.ReadyEndpoints, EngineRank: router.EngineRank, TakesAdapter: router.TakesAdapter,
		MaxBodyBytes: o.MaxBodyBytes,
	}
	s.checks = newChecker(router, transport, o)
	finds := o.Discovery
	finds.Ranks, finds.Changed = router, s.checks.again
	if s.found, err = discover.New(finds); err != nil {
		router.Close()
		return nil, err
	}
	if s.spans, err = openSpans(o); err != nil {
		router.Close()
		return nil, err
	}
	s.proxy, err = proxy.New(proxy.Options{
		Router: s.router, Reader: s.reader, Failed: s.checks.failed, Check: s.check, Observer: s.times, Spans: s.spans.Router(o.Policy.Name),
		MaxTries: o.MaxTries, FirstByteTimeout: o.FirstByteTimeout, IdleTimeout: o.IdleTimeout,
		KeepAuthorization: o.Token == "" && o.EngineKey == "", EngineKey: o.EngineKey, Transport: transport, Logger: o.Logger,
	})
	if err != nil {
		s.spans.Close()
		router.Close()
		return nil, err
	}
	s.history = newHistory(s)
	return s, nil
}

// openSpans returns what sends traces, nil if none are to be sent.
func openSpans(o *Options) (*spans.Tracer, error) {
	if o.Spans == nil {
		return nil, nil
	}
	so := *o.Spans
	so.Logger, so.Service, so.Instance = o.Logger, "kvconn-router", rand.Text()
	t, err := spans.New(so)
	if err != nil {
		return nil, fmt.Errorf("send traces: %w", err)
	}
	o.Logger.Info("traces of requests are sent", "url", so.URL, "ratio", so.Ratio)
	return t, nil
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
	return s.checks.check(ctx, info.Endpoint)
}

// serve answers on l until ctx ends and the requests under way have ended.
func (s *server) serve(ctx context.Context, l net.Listener) error {
	h := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	// A router that stops still chooses among ranks for a while.
	checking, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var checks sync.WaitGroup
	defer checks.Wait()
	defer cancel()
	if s.opts.HealthInterval >= 0 {
		checks.Go(func() { s.checks.run(checking) })
	}
	checks.Go(func() { s.history.Run(checking) })
	checks.Go(func() { s.found.Run(checking) })
	st := s.router.Stats()
	s.opts.Logger.Info("the router listens", "http", l.Addr().String(), "ranks", st.Ranks, "ready", st.Ready, "policy", s.opts.Policy.Name)
	if s.opts.Ready != nil {
		s.opts.Ready(l.Addr().String())
	}
	delay := min(max(s.opts.DrainDelay, 0), s.opts.DrainTimeout/2)
	cut, err := httpserve.Serve(ctx, h, l, s.opts.DrainTimeout-delay, func() {
		s.draining.Store(true)
		s.opts.Logger.Info("the router stops: it is not ready any more, but accepts requests for another while",
			"accepts_for", delay, "in_flight", s.proxy.Stats().InFlight, "at_most", s.opts.DrainTimeout)
		time.Sleep(delay)
	})
	if cut {
		s.opts.Logger.Warn("requests did not end in time and were broken off", "in_flight", s.proxy.Stats().InFlight)
	}
	return err
}
