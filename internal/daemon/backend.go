package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/daemon/adapters"
	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/daemon/probe"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/host/handoff"
	"github.com/kvconn/kvconn/worker"
)

// backend opens a leader for every scheduler and a worker for every rank that connects,
// all on one chain of tiers.
type backend struct {
	opts  *Options
	times *observe.Times
	chain *store.Chain
	cache *host.Cache
	// levels are where loads come from, the fastest first.
	levels  []store.Level
	probers []*probe.Prober
	// adapters are what engines use.
	adapters *adapters.Registry
	// record is nil if no trace is recorded.
	record *tracelog.Log
	// tracer is nil if no traces are sent.
	tracer *spans.Tracer

	mu         sync.Mutex
	schedulers map[*schedulerSession]struct{}
	workers    map[*workerSession]struct{}
	// refused are ranks whose memory could not be opened, until it can.
	refused map[engineRank]struct{}
	// past has the counts of ended sessions, so that metrics never decrease; draining are
	// ended workers with saves still under way.
	past     models.Counts
	draining map[*workerSession]struct{}
	// opened and failed count how openings of namespaces ended.
	opened, failed atomic.Uint64
}

var _ server.Backend = (*backend)(nil)

func newBackend(o *Options, chain *store.Chain, a *host.Arena) *backend {
	b := &backend{
		opts: o, chain: chain, cache: host.NewCache(a, chain), times: observe.NewTimes(), adapters: adapters.New(),
		schedulers: make(map[*schedulerSession]struct{}), workers: make(map[*workerSession]struct{}),
		refused:  make(map[engineRank]struct{}),
		draining: make(map[*workerSession]struct{}), past: make(models.Counts),
	}
	b.levels = []store.Level{b.cache}
	for _, t := range chain.Tiers() {
		b.levels = append(b.levels, t)
		b.probers = append(b.probers, &probe.Prober{Tier: t, Timeout: o.LoadTimeout})
	}
	return b
}

// schedulerSession is one engine instance's leader.
type schedulerSession struct {
	*leader.Leader
	// handoffs is set for engines that cannot report a failed load.
	handoffs *handoff.Handoffs
	// prefetches is nil for those, and where it is not wanted.
	prefetches *host.Prefetches
	// notReady is why nothing is offered, "" if it is; the backend's mutex guards it.
	notReady  string
	b         *backend
	peer      server.Peer
	manifest  *connector.Manifest
	namespace connector.NamespaceDigest
	since     time.Time
	spans     *spans.Engine // nil if no traces are sent
}

// workerSession is one rank's worker.
type workerSession struct {
	*worker.Worker
	b         *backend
	peer      server.Peer
	namespace connector.NamespaceDigest
	rank      int
	manifest  *connector.Manifest
	since     time.Time
	spans     *spans.Engine // nil if no traces are sent
	// keyed is the leader of an engine that brings its own keys, nil for others; notReady is why
	// nothing is offered, "" if it is. The backend's mutex guards notReady.
	keyed    *leader.Keyed
	traces   *spans.Keyed // nil like keyed
	notReady string
	// ends orders the starts of loads by key and the polls, which come over several connections: the
	// leader must know a load before its end. Nothing waits for I/O while it is held.
	ends sync.Mutex
	// registered is set while the rank's memory is held, lost from the loss of the memory
	// until it is registered again; the backend's mutex guards both.
	registered, lost bool
}

var (
	_ server.Scheduler = (*schedulerSession)(nil)
	_ server.Worker    = (*workerSession)(nil)
	_ server.Worker    = keyedSession{}
)

// OpenScheduler makes a leader for an engine instance.
func (b *backend) OpenScheduler(_ context.Context, p server.Peer, m *connector.Manifest) (server.Scheduler, error) {
	ns, err := b.openNamespace(m)
	if err != nil {
		return nil, err
	}
	s := &schedulerSession{b: b, peer: p, manifest: m, namespace: ns, since: time.Now(), spans: b.tracer.Engine(p.Engine, m, short(ns))}
	o := b.leaderOptions(ns, m, p)
	if p.Handoff {
		account, err := b.account(ns)
		if err != nil {
			b.chain.CloseNamespace(ns)
			return nil, err
		}
		s.handoffs = handoff.New(b.cache, account)
		o.Handoff = s.handoffs
	} else if !b.opts.NoPrefetch {
		if s.prefetches, err = host.NewPrefetches(b.cache, ns, s.loads); err != nil {
			b.chain.CloseNamespace(ns)
			return nil, err
		}
		o.Prefetch = s.prefetches
	}
	if s.Leader, err = leader.New(o, b.chain); err != nil {
		s.letGo()
		return nil, fmt.Errorf("%w: %w", connector.ErrBadRequest, err)
	}
	b.mu.Lock()
	b.schedulers[s] = struct{}{}
	changes := b.tellReady(p.Engine)
	b.mu.Unlock()
	b.log("engine scheduler connected", p, "model", m.Model, "namespace", short(ns))
	b.logReady(changes)
	return s, nil
}

func (b *backend) leaderOptions(ns connector.NamespaceDigest, m *connector.Manifest, p server.Peer) leader.Options {
	o := leader.Options{
		Namespace: ns, Manifest: m,
		MinOfferTokens: b.opts.MinOfferTokens, PromptsOnly: b.opts.PromptsOnly,
		PrefillTokensPerS: b.opts.PrefillTokensPerS, HandoffTimeout: b.opts.StageTimeout,
		LoadTTL: 2 * b.opts.LoadTimeout,
		Levels:  b.levels, Probe: b.probe,
	}
	b.recordTo(&o, p)
	return o
}

// Match is the leader's, measured: the engine's scheduler waits for it.
func (s *schedulerSession) Match(ctx context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	defer s.b.times.Matched(time.Now())
	if s.spans != nil {
		return s.spans.Match(ctx, m, s.Leader.Match)
	}
	return s.Leader.Match(ctx, m)
}

// loads reports whether a rank of the engine on this node loads a shard.
func (s *schedulerSession) loads(shard connector.Shard) bool {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return slices.Contains(s.manifest.Shards(s.b.ranksHere(s.peer.Engine, s.namespace)), shard)
}

// account returns a share of the host tier for one session.
func (b *backend) account(ns connector.NamespaceDigest) (*host.Account, error) {
	return b.cache.Account(host.AccountOptions{Namespace: ns, LoadBytes: b.opts.LoadStagingBytes, SaveBytes: b.opts.SaveStagingBytes})
}

// letGo releases the namespace once the reads that no load waits for have ended, and what they brought
// is written: on a disk that hangs that takes long.
func (s *schedulerSession) letGo() {
	go func() {
		if s.prefetches != nil {
			s.prefetches.Close() // gives its reads up
		}
		if s.handoffs != nil {
			s.handoffs.Close()
		}
		s.b.chain.CloseNamespace(s.namespace)
	}()
}

// OpenWorker makes a worker for a rank.
func (b *backend) OpenWorker(_ context.Context, p server.Peer, m *connector.Manifest, rank int) (server.Worker, error) {
	ns, err := b.openNamespace(m)
	if err != nil {
		return nil, err
	}
	account, err := b.account(ns)
	if err != nil {
		b.chain.CloseNamespace(ns)
		return nil, err
	}
	s := &workerSession{b: b, peer: p, namespace: ns, rank: rank, manifest: m, since: time.Now(), spans: b.tracer.Engine(p.Engine, m, short(ns))}
	s.Worker, err = worker.New(worker.Options{
		Namespace: ns, Manifest: m, Rank: rank, Driver: b.opts.Driver, Cache: b.cache, Account: account,
		LoadTimeout: b.opts.LoadTimeout, Lost: s.loseMemory, Trace: s.trace, Connection: p.Connection, Observer: s.spans.Rank(rank, s.traced, b.times),
		Logger: b.opts.Logger.With("engine", p.Engine, "rank", rank),
	})
	if err == nil && m.KeyScheme == connector.KeySchemeEngine {
		s.keyed, err = leader.NewKeyed(b.leaderOptions(ns, m, p), b.chain)
		if err == nil {
			s.traces, err = spans.NewKeyed()
		}
		if err != nil {
			s.Worker.Close()
		}
	}
	if err != nil {
		account.Close()
		b.chain.CloseNamespace(ns)
		return nil, err
	}
	b.mu.Lock()
	b.foldDrained()
	b.workers[s] = struct{}{}
	changes := b.tellReady(p.Engine)
	b.mu.Unlock()
	b.log("engine worker connected", p, "model", m.Model, "rank", rank, "namespace", short(ns))
	b.logReady(changes)
	if s.keyed != nil {
		return keyedSession{s}, nil
	}
	return s, nil
}

// trace returns the traceparent of a load.
func (s *workerSession) trace(load string) string {
	_, trace := s.traced(load)
	return trace
}

// traced returns the request that a load is for and its traceparent, as the rank's engine has told it here.
func (s *workerSession) traced(load string) (request, trace string) {
	if s.traces != nil {
		return s.traces.Of(load)
	}
	return load, s.schedulersTrace(load)
}

// schedulersTrace returns the traceparent of a request of the rank's engine, as its scheduler has told it here.
func (s *workerSession) schedulersTrace(request string) string {
	s.b.mu.Lock()
	var leaders []*leader.Leader
	for l := range s.b.schedulers {
		if l.peer.Engine == s.peer.Engine {
			leaders = append(leaders, l.Leader)
		}
	}
	s.b.mu.Unlock()
	for _, l := range leaders {
		if trace := l.Trace(request); trace != "" {
			return trace
		}
	}
	return ""
}

func (b *backend) openNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	ns, err := b.chain.OpenNamespace(m)
	if err != nil {
		b.failed.Add(1)
		return ns, fmt.Errorf("the store cannot take up model %q (namespace %s): %w", m.Model, short(ns), err)
	}
	b.opened.Add(1)
	return ns, nil
}

func (b *backend) log(msg string, p server.Peer, args ...any) {
	b.opts.Logger.Info(msg, append([]any{slog.String("engine", p.Engine), p.Process(), slog.String("client", p.Client)}, args...)...)
}

// short is the beginning of a digest, enough for people to distinguish namespaces.
func short(d connector.NamespaceDigest) string { return d.String()[:12] }

// Close ends the session and releases what its requests had pinned.
func (s *schedulerSession) Close() {
	s.Leader.Close()
	s.b.adapters.Forget(s)
	s.letGo()
	s.b.mu.Lock()
	delete(s.b.schedulers, s)
	s.b.past.Of(s.manifest.Model).AddLeader(s.Stats())
	changes := s.b.tellReady(s.peer.Engine)
	s.b.mu.Unlock()
	s.b.log("engine scheduler disconnected", s.peer)
	s.b.logReady(changes)
}

// Close ends the session; engine memory is no longer touched when it returns.
func (s *workerSession) Close() {
	if s.keyed != nil {
		s.keyed.Close()
	}
	s.Worker.Close()
	s.b.mu.Lock()
	delete(s.b.workers, s)
	if s.leads() {
		s.b.past.Of(s.manifest.Model).AddLeader(s.keyed.Stats())
	}
	s.b.draining[s] = struct{}{}
	s.unlockReady()
	s.b.log("engine worker disconnected", s.peer, "rank", s.rank)
}

// foldDrained adds the counts of ended workers with no saves under way to the past, and
// releases their namespaces, which those saves needed.
func (b *backend) foldDrained() {
	for w := range b.draining {
		if w.Drained() {
			b.past.Of(w.manifest.Model).AddWorker(w.Stats())
			b.chain.CloseNamespace(w.namespace)
			delete(b.draining, w)
		}
	}
}

// Register opens the engine's memory.
func (s *workerSession) Register(ctx context.Context, r *server.Registration) (server.Registered, error) {
	n, err := s.Worker.Register(ctx, &r.Layout, r.Regions, r.Fence)
	s.setMemory(err == nil, err != nil)
	if err != nil {
		s.b.opts.Logger.Warn("KV memory of a rank cannot be used: its engine is offered nothing until it can", "engine", s.peer.Engine,
			"rank", s.rank, "err", err, "remedy", "see err: the engine's memory must be shared, and fit its layout, its manifest and host_bytes")
		return server.Registered{}, err
	}
	out := server.Registered{BlockBytes: n}
	if s.peer.Handoff {
		out.HostTier = s.b.cache.File()
	}
	return out, nil
}

// Unregister releases the engine's memory.
func (s *workerSession) Unregister(ctx context.Context) error {
	s.setMemory(false, false)
	return s.Worker.Unregister(ctx)
}
