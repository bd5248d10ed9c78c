package service

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/internal/history"
	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/router/discover"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/route"
)

// Health says whether the router does its work.
type Health struct {
	OK bool `json:"ok" metric:"healthy" help:"1 while /healthz is good, 0 while it is not."`
	// Reasons are what is wrong; empty if OK.
	Reasons []HealthReason `json:"reasons"`
}

// HealthReason is one thing that is wrong.
type HealthReason struct {
	// Code is no_ranks, no_rank_ready, feed_refused, store_refused, block_sizes_differ or discovery_failing.
	Code string `json:"code"`
	// Detail says what was seen, Remedy what a person can do.
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
}

// health judges the router by its figures.
func health(st *route.Stats, found *discover.Stats) Health {
	h := Health{Reasons: []HealthReason{}}
	switch {
	case st.Ranks == 0:
		h.Reasons = append(h.Reasons, HealthReason{"no_ranks", "no rank is registered", "add ranks to the configuration or with POST /v1/ranks"})
	case st.Ready == 0:
		h.Reasons = append(h.Reasons, HealthReason{"no_rank_ready", "no rank is ready", "GET /v1/ranks says why not, for each"})
	}
	h.Reasons = append(h.Reasons, blockSizeReasons(st)...)
	if found.Down > 0 { // without the errors: anybody may ask for /healthz
		h.Reasons = append(h.Reasons, HealthReason{
			"discovery_failing", fmt.Sprintf("%d of %d sources of ranks cannot be read", found.Down, found.Sources),
			"the ranks found last stay; GET /v1/status says why in discovery.why: mend what it names, it is tried again",
		})
	}
	h.OK = len(h.Reasons) == 0
	return h
}

func (s *server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	st, found := s.router.Stats(), s.found.Stats()
	h := health(&st, &found)
	httpserve.WriteJSON(w, okIf(h.OK), h, "")
}

// Readiness is the answer of /readyz.
type Readiness struct {
	Ready bool `json:"ready"`
}

// serveReady answers 503 while no rank is ready, and once the router stops.
func (s *server) serveReady(w http.ResponseWriter, _ *http.Request) {
	st := s.router.Stats()
	ready := st.Ready > 0 && !s.draining.Load()
	httpserve.WriteJSON(w, okIf(ready), Readiness{Ready: ready}, "")
}

// okIf is the status 200, or 503.
func okIf(ok bool) int {
	if ok {
		return http.StatusOK
	}
	return http.StatusServiceUnavailable
}

// Status is the answer of /v1/status, and the table of the metrics: see package counters. Labels have few values,
// all known beforehand. GET /v1/ranks has the figures of a rank.
type Status struct {
	Version  string   `json:"version"`
	UptimeS  float64  `json:"uptime_s"`
	Policy   string   `json:"policy"`
	Models   []string `json:"models"`
	Draining bool     `json:"draining"`
	Health   Health   `json:"health" metric:""`
	route.Stats
	// Discovery are the figures of the ranks that were looked for.
	Discovery discover.Stats `json:"discovery" metric:""`
	// Index are the prefix index's figures, Proxy those of the completions forwarded.
	Index IndexStatus `json:"index" metric:"index_"`
	Proxy proxy.Stats `json:"proxy" metric:""`
	// Spans is nil if no traces are sent.
	Spans *spans.Stats `json:"spans,omitempty" metric:"spans_"`
	// EventFeeds and StoreFeeds count the feeds of engines and stores.
	EventFeeds map[feed.State]int `json:"-" metric:"event_feeds" label:"state" help:"Feeds of engines' KV events, by state."`
	StoreFeeds map[feed.State]int `json:"-" metric:"residency_feeds" label:"state" help:"Feeds of what stores hold, by state."`
	// RankReady says of each rank, by its id, whether it gets requests; nil without [Options.RankMetrics].
	RankReady map[string]bool `json:"-" metric:"rank_ready" label:"rank" help:"1 for a rank that gets requests, 0 for one that does not. Only with the setting rank_metrics."`
}

// IndexStatus are the figures of the prefix index.
type IndexStatus struct {
	Blocks        int    `json:"blocks" metric:"blocks" help:"Distinct blocks in the prefix index."`
	Runs          int    `json:"runs"`
	Holders       int    `json:"holders"`
	Held          int64  `json:"held"`
	Bytes         int64  `json:"bytes" metric:"bytes" help:"Memory of the prefix index."`
	EvictedBlocks uint64 `json:"evicted_blocks" metric:"evicted_blocks_total" help:"Blocks forgotten because a bound was passed."`
	Predicted     int    `json:"predicted"`
}

// status is a reading of all figures.
func (s *server) status() *Status {
	st, found := s.router.Stats(), s.found.Stats()
	models := s.router.Models()
	if models == nil {
		models = []string{}
	}
	var ready map[string]bool
	if s.opts.RankMetrics {
		ready = make(map[string]bool, st.Ranks)
		for _, r := range s.router.Ranks() {
			ready[strconv.Itoa(int(r.ID))] = r.Ready
		}
	}
	return &Status{
		RankReady: ready,
		Version:   s.opts.Version, UptimeS: time.Since(s.started).Seconds(), Policy: s.opts.Policy.Name, Models: models,
		Draining: s.draining.Load(), Health: health(&st, &found), Stats: st, Discovery: found, Proxy: s.proxy.Stats(), Spans: s.spans.Stats(),
		Index: IndexStatus{
			Blocks: st.Index.Blocks, Runs: st.Index.Runs, Holders: st.Index.Holders, Held: st.Index.Held, Bytes: st.Index.Bytes,
			EvictedBlocks: st.Index.EvictedBlocks, Predicted: st.Index.Predicted,
		},
		EventFeeds: byState(st.Engines, func(e *feed.RankStats) feed.State { return e.State }),
		StoreFeeds: byState(st.Stores, func(e *feed.ResidencyStats) feed.State { return e.State }),
	}
}

// serveDecisions answers with the last decisions.
func (s *server) serveDecisions(http.ResponseWriter, *http.Request) (any, error) {
	return s.router.recent.answer(time.Now()), nil
}

// newHistory keeps what the page draws.
func newHistory(s *server) *history.Recorder {
	return history.New(func(v []float64) {
		st, p := s.router.Stats(), s.proxy.Stats()
		v[0], v[1], v[2] = float64(p.OK), float64(p.Failed+p.Broken), float64(p.InFlight)
		v[3], v[4], v[5], v[6] = float64(st.PromptTokens), float64(st.GPUTokens), float64(st.DiskTokens), float64(st.ObjectTokens)
	}, "ok_total", "failed_total", "in_flight", "prompt_tokens_total", "gpu_tokens_total", "disk_tokens_total", "object_tokens_total")
}

func (s *server) serveStatus(http.ResponseWriter, *http.Request) (any, error) { return s.status(), nil }

// metricPrefix begins the names of the metrics.
const metricPrefix = "kvconn_router_"

// Metrics describes the metrics of a router, sorted by name, but for those of Go and of the process.
func Metrics() []counters.Metric {
	list := append(counters.List[Status](metricPrefix), observe.RequestList()...)
	list = append(list, observe.BuildMetric(metricPrefix), counters.Metric{Name: decisionTimes, Help: decisionHelp, Kind: "histogram"})
	slices.SortFunc(list, func(a, b counters.Metric) int { return strings.Compare(a.Name, b.Name) })
	return list
}

const (
	decisionTimes = metricPrefix + "decision_seconds"
	decisionHelp  = "Time to choose a rank: hashing and scores are included, tokenizing is not."
)

// timed is a router that measures how long its decisions take, tokenizing apart, and remembers the last ones.
type timed struct {
	*route.Router
	times  prometheus.Histogram
	recent *recent
}

func newTimed(r *route.Router) timed {
	buckets := []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1}
	return timed{r, prometheus.NewHistogram(observe.Histogram(decisionTimes, decisionHelp, buckets)), new(recent)}
}

// Route is the router's.
func (t timed) Route(ctx context.Context, req *route.Request, d *route.Decision) error {
	start := time.Now()
	err := t.Router.Route(ctx, req, d)
	t.times.Observe(time.Since(start).Seconds())
	t.recent.note(start, d, err)
	return err
}

// RouteAll is the router's; each request counts with the mean of their times.
func (t timed) RouteAll(ctx context.Context, reqs []route.Request, out []route.Decision) []error {
	start := time.Now()
	errs := t.Router.RouteAll(ctx, reqs, out)
	mean := time.Since(start).Seconds() / float64(len(reqs))
	for i := range reqs {
		t.times.Observe(mean)
		t.recent.note(start, &out[i], errs[i])
	}
	return errs
}

// byState counts feeds by state. Every state is listed.
func byState[T any](feeds []T, state func(*T) feed.State) map[feed.State]int {
	n := map[feed.State]int{feed.StateConnecting: 0, feed.StateSynced: 0, feed.StatePartial: 0, feed.StateStale: 0, feed.StateRefused: 0}
	for i := range feeds {
		n[state(&feeds[i])]++
	}
	return n
}
