package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/daemon/explain"
	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/worker"
)

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

// status lists the sessions, sorted by engine and rank, and the totals of all sessions since the
// daemon's start by model, sorted by name.
func (b *backend) status(now time.Time) (engines []EngineStatus, ranks []RankStatus, byModel []models.Totals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.foldDrained()
	for s := range b.schedulers { // a model has its name before its first engine leaves
		b.past.Of(s.manifest.Model)
	}
	for w := range b.workers {
		b.past.Of(w.manifest.Model)
	}
	sums := make(models.Counts, len(b.past))
	for name, past := range b.past {
		t := *past
		sums[name] = &t
	}
	engines = make([]EngineStatus, 0, len(b.schedulers))
	add := func(e EngineStatus, p server.Peer, m *connector.Manifest, ns connector.NamespaceDigest, since time.Time) {
		e.Engine, e.PID, e.Client, e.Model, e.Namespace = p.Engine, p.PID, p.Client, m.Model, ns.String()
		e.ConnectedS, e.BlockSize, e.RanksNeeded = now.Sub(since).Seconds(), m.BlockSize, m.Ranks()
		engines = append(engines, e)
		t := sums.Of(m.Model)
		t.AddLeader(e.Requests)
		t.Engines++
		t.PrefillTokensPerS = max(t.PrefillTokensPerS, e.Requests.PrefillTokensPerS)
		if e.Requests.TierRefused {
			t.Trimming++
		}
	}
	for s := range b.schedulers {
		add(EngineStatus{Requests: s.Stats(), NotReady: s.notReady}, s.peer, s.manifest, s.namespace, s.since)
	}
	for w := range b.workers {
		if w.leads() {
			add(EngineStatus{Requests: w.keyed.Stats(), NotReady: w.notReady}, w.peer, w.manifest, w.namespace, w.since)
		}
	}
	ranks = make([]RankStatus, 0, len(b.workers))
	for w := range b.workers {
		st, blockBytes := w.Stats(), w.BlockBytes()
		t := sums.Of(w.manifest.Model)
		t.AddWorker(st)
		t.Ranks++
		ranks = append(ranks, RankStatus{
			Engine: w.peer.Engine, PID: w.peer.PID, Rank: w.rank, Model: w.manifest.Model, Namespace: w.namespace.String(),
			ConnectedS: now.Sub(w.since).Seconds(), Registered: blockBytes != nil, BlockBytes: blockBytes, Transfers: st,
		})
	}
	for w := range b.draining {
		sums.Of(w.manifest.Model).AddWorker(w.Stats())
	}
	for _, t := range sums {
		byModel = append(byModel, *t)
	}
	slices.SortFunc(engines, func(a, b EngineStatus) int { return cmp.Compare(a.Engine, b.Engine) })
	slices.SortFunc(ranks, func(a, b RankStatus) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	slices.SortFunc(byModel, func(a, b models.Totals) int { return cmp.Compare(a.Model, b.Model) })
	return engines, ranks, byModel
}

// newest returns the newest engine of a model.
func (b *backend) newest(model string) (e explain.Engine) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var since time.Time
	take := func(m *connector.Manifest, at time.Time, stats func() leader.Stats) {
		if m.Model == model && (e.Manifest == nil || at.After(since)) {
			e, since = explain.Engine{Manifest: m, PrefillTokensPerS: stats().PrefillTokensPerS}, at
		}
	}
	for s := range b.schedulers {
		take(s.manifest, s.since, s.Stats)
	}
	for w := range b.workers {
		if w.keyed != nil {
			take(w.manifest, w.since, w.keyed.Stats)
		}
	}
	return e
}
