package daemon

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/worker"
)

const (
	// maxModels bounds the models that are counted separately, and with them the values of the
	// metrics' model label. Names come from clients.
	maxModels = 32
	// otherModels is the name under which the rest is counted.
	otherModels = "other"
	// maxModelBytes bounds a name.
	maxModelBytes = 128
)

// totals are the sums of the counters of leaders and workers.
type totals struct {
	Leader leader.Stats `metric:""`
	Worker worker.Stats `metric:""`
}

// modelTotals are the counters of all engines and ranks of one model.
type modelTotals struct {
	sum     totals `metric:""`
	Model   string `label:"model"`
	Engines int    `metric:"model_engines" help:"Engine instances connected, by model."`
	Ranks   int    `metric:"model_ranks" help:"Ranks connected, by model."`

	PrefillTokensPerS float64 `metric:"model_prefill_tokens_per_second" help:"Prefill speed that decisions are made with: that of the model's fastest engine; 0 while it is not known."`
	Trimming          int     `metric:"model_trimming_engines" help:"Engines that are offered less than what is stored, because the disk is slower than their prefill."`
}

func (t *modelTotals) addLeader(s leader.Stats) { counters.Add(&t.sum.Leader, &s) }
func (t *modelTotals) addWorker(s worker.Stats) { counters.Add(&t.sum.Worker, &s) }

// modelCounts keeps counters by model. The first maxModels names of a daemon's life have
// their own. Its user's lock guards it.
type modelCounts map[string]*modelTotals

func (c modelCounts) of(model string) *modelTotals {
	model = strings.ToValidUTF8(model[:min(len(model), maxModelBytes)], "")
	t := c[model]
	if t == nil && len(c) >= maxModels {
		model = otherModels
		t = c[model]
	}
	if t == nil {
		t = &modelTotals{Model: model}
		c[model] = t
	}
	return t
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

// status lists the sessions, sorted by engine and rank, and the totals of all sessions since the
// daemon's start by model, sorted by name.
func (b *backend) status(now time.Time) (engines []EngineStatus, ranks []RankStatus, models []modelTotals) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.foldDrained()
	for s := range b.schedulers { // a model has its name before its first engine leaves
		b.past.of(s.manifest.Model)
	}
	for w := range b.workers {
		b.past.of(w.manifest.Model)
	}
	sums := make(modelCounts, len(b.past))
	for name, past := range b.past {
		t := *past
		sums[name] = &t
	}
	engines = make([]EngineStatus, 0, len(b.schedulers))
	add := func(e EngineStatus, p server.Peer, m *connector.Manifest, ns connector.NamespaceDigest, since time.Time) {
		e.Engine, e.PID, e.Client, e.Model, e.Namespace = p.Engine, p.PID, p.Client, m.Model, ns.String()
		e.ConnectedS, e.BlockSize, e.RanksNeeded = now.Sub(since).Seconds(), m.BlockSize, m.Ranks()
		engines = append(engines, e)
		t := sums.of(m.Model)
		t.addLeader(e.Requests)
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
		t := sums.of(w.manifest.Model)
		t.addWorker(st)
		t.Ranks++
		ranks = append(ranks, RankStatus{
			Engine: w.peer.Engine, PID: w.peer.PID, Rank: w.rank, Model: w.manifest.Model, Namespace: w.namespace.String(),
			ConnectedS: now.Sub(w.since).Seconds(), Registered: blockBytes != nil, BlockBytes: blockBytes, Transfers: st,
		})
	}
	for w := range b.draining {
		sums.of(w.manifest.Model).addWorker(w.Stats())
	}
	for _, t := range sums {
		models = append(models, *t)
	}
	slices.SortFunc(engines, func(a, b EngineStatus) int { return cmp.Compare(a.Engine, b.Engine) })
	slices.SortFunc(ranks, func(a, b RankStatus) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Rank, b.Rank))
	})
	slices.SortFunc(models, func(a, b modelTotals) int { return cmp.Compare(a.Model, b.Model) })
	return engines, ranks, models
}
