package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/worker"
)

// backend opens a leader for every scheduler and a worker for every rank that connects,
// all on one store.
type backend struct {
	opts  *Options
	store *disk.Store
	cache *host.Cache
	tiers *tiers

	mu         sync.Mutex
	schedulers map[*schedulerSession]struct{}
	workers    map[*workerSession]struct{}
	// refused are ranks whose memory was offered and could not be taken, until it is.
	refused map[engineRank]struct{}
	// past keeps the counts of sessions that have ended, so that metrics never run
	// backwards; draining are workers that have ended and still have saves under way.
	past   totals
	models modelCounts
	// namespaces counts how openings of namespaces ended.
	namespaces openings
	draining   map[*workerSession]struct{}
}

var _ server.Backend = (*backend)(nil)

func newBackend(o *Options, s *disk.Store, a *host.Arena) *backend {
	b := &backend{
		opts: o, store: s, cache: host.NewCache(a, s),
		schedulers: make(map[*schedulerSession]struct{}), workers: make(map[*workerSession]struct{}),
		refused:  make(map[engineRank]struct{}),
		draining: make(map[*workerSession]struct{}), models: make(modelCounts),
	}
	b.tiers = &tiers{b: b}
	return b
}

// openings counts openings of namespaces that succeeded and failed.
type openings struct{ opened, failed atomic.Uint64 }

func (o *openings) count(err error) {
	if err != nil {
		o.failed.Add(1)
	} else {
		o.opened.Add(1)
	}
}

// totals are the counters of leaders and workers added up.
type totals struct {
	Leader leader.Stats `metric:""`
	Worker worker.Stats `metric:""`
}

func (t *totals) addLeader(s leader.Stats) { counters.Add(&t.Leader, &s) }

func (t *totals) addWorker(s worker.Stats) { counters.Add(&t.Worker, &s) }

// schedulerSession is one engine instance's leader.
type schedulerSession struct {
	*leader.Leader
	// handoffs is set for engines that cannot report a failed load.
	handoffs *host.Handoffs
	// notReady is why nothing is offered, "" if it is; the backend's mutex guards it.
	notReady  string
	b         *backend
	peer      server.Peer
	manifest  *connector.Manifest
	namespace connector.NamespaceDigest
	since     time.Time
}

// workerSession is one rank's worker.
type workerSession struct {
	*worker.Worker
	b         *backend
	peer      server.Peer
	namespace connector.NamespaceDigest
	rank      int
	model     string
	since     time.Time
	// registered is set while the rank's memory is held, lost once it is gone until it is
	// registered again; the backend's mutex guards both.
	registered, lost bool
}

var (
	_ server.Scheduler = (*schedulerSession)(nil)
	_ server.Worker    = (*workerSession)(nil)
)

// OpenScheduler makes a leader for an engine instance.
func (b *backend) OpenScheduler(_ context.Context, p server.Peer, m *connector.Manifest) (server.Scheduler, error) {
	ns, err := b.openNamespace(m)
	if err != nil {
		return nil, err
	}
	s := &schedulerSession{b: b, peer: p, manifest: m, namespace: ns, since: time.Now()}
	o := leader.Options{
		Namespace: ns, Manifest: m,
		MinOfferTokens: b.opts.MinOfferTokens, PromptsOnly: b.opts.PromptsOnly,
		PrefillTokensPerS: b.opts.PrefillTokensPerS, StageTimeout: b.opts.StageTimeout,
		LoadTTL: 2 * b.opts.LoadTimeout,
		Tiers:   b.tiers, Probe: b.tiers.probe,
	}
	if p.Handoff {
		account, err := b.account(ns)
		if err != nil {
			b.store.CloseNamespace(ns)
			return nil, err
		}
		s.handoffs = host.NewHandoffs(b.cache, account)
		o.Handoff = s.handoffs
	}
	if s.Leader, err = leader.New(o, b.store); err != nil {
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

// account returns a share of the host tier for one session.
func (b *backend) account(ns connector.NamespaceDigest) (*host.Account, error) {
	return b.cache.Account(host.AccountOptions{Namespace: ns, LoadBytes: b.opts.LoadStagingBytes, SaveBytes: b.opts.SaveStagingBytes})
}

// letGo lets go of the namespace, once the reads have ended that handoffs have left to the tiers.
func (s *schedulerSession) letGo() {
	if s.handoffs == nil {
		s.b.store.CloseNamespace(s.namespace)
		return
	}
	go func() {
		s.handoffs.Close()
		s.b.store.CloseNamespace(s.namespace)
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
		b.store.CloseNamespace(ns)
		return nil, err
	}
	s := &workerSession{b: b, peer: p, namespace: ns, rank: rank, model: m.Model, since: time.Now()}
	s.Worker, err = worker.New(worker.Options{
		Namespace: ns, Manifest: m, Rank: rank, Driver: b.opts.Driver, Cache: b.cache, Account: account,
		LoadTimeout: b.opts.LoadTimeout, Lost: s.loseMemory,
		Logger: b.opts.Logger.With("engine", p.Engine, "rank", rank),
	})
	if err != nil {
		account.Close()
		b.store.CloseNamespace(ns)
		return nil, err
	}
	b.mu.Lock()
	b.foldDrained()
	b.workers[s] = struct{}{}
	b.mu.Unlock()
	b.log("engine worker connected", p, "rank", rank, "namespace", short(ns))
	return s, nil
}

func (b *backend) openNamespace(m *connector.Manifest) (connector.NamespaceDigest, error) {
	ns, err := b.store.OpenNamespace(m)
	b.namespaces.count(err)
	if err != nil {
		return ns, fmt.Errorf("the store cannot take up model %q (namespace %s): %w", m.Model, short(ns), err)
	}
	return ns, nil
}

func (b *backend) log(msg string, p server.Peer, args ...any) {
	b.opts.Logger.Info(msg, append([]any{slog.String("engine", p.Engine), slog.Int("pid", p.PID), slog.String("client", p.Client)}, args...)...)
}

// short is the beginning of a digest, enough for a person to tell namespaces apart.
func short(d connector.NamespaceDigest) string { return d.String()[:12] }

// Close ends the session and releases what its requests had pinned.
func (s *schedulerSession) Close() {
	s.Leader.Close()
	s.letGo()
	s.b.mu.Lock()
	delete(s.b.schedulers, s)
	s.b.past.addLeader(s.Stats())
	s.b.models.addLeader(s.manifest.Model, s.Stats())
	changes := s.b.tellReady(s.peer.Engine)
	s.b.mu.Unlock()
	s.b.log("engine scheduler disconnected", s.peer)
	s.b.logReady(changes)
}

// Close ends the session; engine memory is no longer touched when it returns.
func (s *workerSession) Close() {
	s.Worker.Close()
	s.b.mu.Lock()
	delete(s.b.workers, s)
	changes := s.b.tellReady(s.peer.Engine)
	s.b.draining[s] = struct{}{}
	s.b.mu.Unlock()
	s.b.log("engine worker disconnected", s.peer, "rank", s.rank)
	s.b.logReady(changes)
}

// foldDrained adds the counts of ended workers without saves under way to the past, and
// lets go of their namespaces, into which they may have saved until now.
func (b *backend) foldDrained() {
	for w := range b.draining {
		if w.Drained() {
			b.past.addWorker(w.Stats())
			b.models.addWorker(w.model, w.Stats())
			b.store.CloseNamespace(w.namespace)
			delete(b.draining, w)
		}
	}
}

// EngineStatus is one engine instance.
type EngineStatus struct {
	Engine      string       `json:"engine"`
	PID         int          `json:"pid"`
	Client      string       `json:"client"`
	Model       string       `json:"model"`
	Namespace   string       `json:"namespace"`
	ConnectedS  float64      `json:"connected_s"`
	BlockSize   int          `json:"block_size"`
	Requests    leader.Stats `json:"requests"`
	RanksNeeded int          `json:"ranks_needed"`
	// NotReady is why nothing is offered to the engine, "" if it is.
	NotReady string `json:"not_ready"`
}

// RankStatus is one connected worker.
type RankStatus struct {
	Engine     string       `json:"engine"`
	PID        int          `json:"pid"`
	Rank       int          `json:"rank"`
	Model      string       `json:"model"`
	Namespace  string       `json:"namespace"`
	ConnectedS float64      `json:"connected_s"`
	Registered bool         `json:"registered"`
	BlockBytes []int        `json:"block_bytes"`
	Transfers  worker.Stats `json:"transfers"`
}

// status lists the sessions, sorted by engine and shard, and adds all counters up.
func (b *backend) status(now time.Time) ([]EngineStatus, []RankStatus, totals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.foldDrained()
	sum := b.past
	for w := range b.draining {
		sum.addWorker(w.Stats())
	}
	engines := make([]EngineStatus, 0, len(b.schedulers))
	for s := range b.schedulers {
		st := s.Stats()
		sum.addLeader(st)
		engines = append(engines, EngineStatus{
			Engine: s.peer.Engine, PID: s.peer.PID, Client: s.peer.Client, Model: s.manifest.Model, Namespace: s.namespace.String(),
			ConnectedS: now.Sub(s.since).Seconds(), BlockSize: s.manifest.BlockSize, Requests: st, RanksNeeded: s.manifest.Ranks(), NotReady: s.notReady,
		})
	}
	ranks := make([]RankStatus, 0, len(b.workers))
	for w := range b.workers {
		st := w.Stats()
		sum.addWorker(st)
		blockBytes := w.BlockBytes()
		ranks = append(ranks, RankStatus{
			Engine: w.peer.Engine, PID: w.peer.PID, Rank: w.rank, Model: w.model, Namespace: w.namespace.String(),
			ConnectedS: now.Sub(w.since).Seconds(), Registered: blockBytes != nil, BlockBytes: blockBytes, Transfers: st,
		})
	}
	sort.Slice(engines, func(i, j int) bool { return engines[i].Engine < engines[j].Engine })
	sort.Slice(ranks, func(i, j int) bool {
		if ranks[i].Engine != ranks[j].Engine {
			return ranks[i].Engine < ranks[j].Engine
		}
		return ranks[i].Rank < ranks[j].Rank
	})
	return engines, ranks, sum
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

// Unregister gives the engine's memory back.
func (s *workerSession) Unregister(ctx context.Context) error {
	s.setMemory(false, false)
	return s.Worker.Unregister(ctx)
}
