package service

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/proxy"
	"github.com/kvconn/kvconn/router/route"
)

// decisionTimes is how long decisions take, tokenizing apart.
type decisionTimes struct{ histogram prometheus.Histogram }

func newDecisionTimes() decisionTimes {
	return decisionTimes{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "kvconn_router_decision_seconds", Help: "Time that decisions took, hashing and scores included, tokenizing not.",
		Buckets: []float64{5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2e-2, 1e-1},
	})}
}

// timed is the router with its decisions timed.
type timed struct {
	*route.Router
	times *decisionTimes
}

// Route is the router's.
func (t timed) Route(ctx context.Context, req *route.Request, d *route.Decision) error {
	start := time.Now()
	err := t.Router.Route(ctx, req, d)
	t.times.histogram.Observe(time.Since(start).Seconds())
	return err
}

// routeAll has a router decide requests together; each counts with the mean of their times.
func (t *decisionTimes) routeAll(ctx context.Context, r *route.Router, reqs []route.Request, out []route.Decision) []error {
	start := time.Now()
	errs := r.RouteAll(ctx, reqs, out)
	mean := time.Since(start).Seconds() / float64(len(reqs))
	for range reqs {
		t.histogram.Observe(mean)
	}
	return errs
}

// figures are what metrics are made of.
type figures struct {
	route  route.Stats
	proxy  proxy.Stats
	health Health
	// states are how many feeds of engines are in which.
	states map[feed.State]int
	stores map[feed.State]int
}

// metric is one exported figure, by the values of a label or without one. Labels have few values that are
// known beforehand: what belongs to a rank is in GET /v1/ranks.
type metric struct {
	desc   *prometheus.Desc
	kind   prometheus.ValueType
	values func(f *figures, add func(label string, v float64))
	plain  bool
}

// collector exports the router's figures.
type collector struct {
	server  *server
	metrics []metric
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(s *server) *collector {
	c := &collector{server: s}
	c.one("ranks", "Ranks registered.", prometheus.GaugeValue, func(f *figures) float64 { return float64(f.route.Ranks) })
	c.one("ranks_ready", "Ranks that get requests.", prometheus.GaugeValue, func(f *figures) float64 { return float64(f.route.Ready) })
	c.one("requests_in_flight", "Requests placed that have not finished.", prometheus.GaugeValue, func(f *figures) float64 { return float64(f.route.InFlight) })
	c.one("prompt_tokens_total", "Prompt tokens of the requests placed.", prometheus.CounterValue, func(f *figures) float64 { return float64(f.route.PromptTokens) })
	c.one("pins_missed_total", "Requests placed elsewhere than a pin that was not strict.", prometheus.CounterValue, func(f *figures) float64 { return float64(f.route.PinsMissed) })
	c.one("healthy", "1 while /healthz is good, 0 while it is not.", prometheus.GaugeValue, func(f *figures) float64 {
		if f.health.OK {
			return 1
		}
		return 0
	})
	c.one("index_blocks", "Distinct blocks in the prefix index.", prometheus.GaugeValue, func(f *figures) float64 { return float64(f.route.Index.Blocks) })
	c.one("index_bytes", "Memory of the prefix index.", prometheus.GaugeValue, func(f *figures) float64 { return float64(f.route.Index.Bytes) })
	c.one("index_evicted_blocks_total", "Blocks forgotten because a bound was passed.", prometheus.CounterValue, func(f *figures) float64 { return float64(f.route.Index.EvictedBlocks) })
	c.one("retries_total", "Further tries on another rank before the first byte.", prometheus.CounterValue, func(f *figures) float64 { return float64(f.proxy.Retries) })
	c.one("untokenized_total", "Completions routed by load alone because no engine tokenized them.", prometheus.CounterValue, func(f *figures) float64 { return float64(f.proxy.Untokenized) })
	c.labelled()
	return c
}

func (c *collector) one(name, help string, kind prometheus.ValueType, value func(*figures) float64) {
	c.metrics = append(c.metrics, metric{
		desc: prometheus.NewDesc("kvconn_router_"+name, help, nil, nil), kind: kind, plain: true,
		values: func(f *figures, add func(string, float64)) { add("", value(f)) },
	})
}

func (c *collector) by(name, help, label string, kind prometheus.ValueType, values func(*figures, func(string, float64))) {
	c.metrics = append(c.metrics, metric{desc: prometheus.NewDesc("kvconn_router_"+name, help, []string{label}, nil), kind: kind, values: values})
}

func (c *collector) labelled() {
	c.by("decisions_total", "Decisions by their reason.", "reason", prometheus.CounterValue, func(f *figures, add func(string, float64)) {
		for reason, n := range f.route.Reasons {
			add(string(reason), float64(n))
		}
	})
	c.by("cached_tokens_total", "Prompt tokens expected to be cached on the chosen rank, by tier.", "tier", prometheus.CounterValue, func(f *figures, add func(string, float64)) {
		add("gpu", float64(f.route.GPUTokens))
		add("disk", float64(f.route.DiskTokens))
		add("object", float64(f.route.ObjectTokens))
	})
	c.by("completions_total", "Completions forwarded, by how they ended.", "outcome", prometheus.CounterValue, func(f *figures, add func(string, float64)) {
		p := &f.proxy
		for name, n := range map[string]uint64{
			"ok": p.OK, "client_error": p.ClientErrors, "refused": p.Refused, "failed": p.Failed, "broken": p.Broken, "left": p.Left,
		} {
			add(name, float64(n))
		}
	})
	states := []feed.State{feed.StateConnecting, feed.StateSynced, feed.StateStale, feed.StateRefused}
	c.by("event_feeds", "Feeds of engines' events by state.", "state", prometheus.GaugeValue, func(f *figures, add func(string, float64)) {
		for _, s := range states {
			add(string(s), float64(f.states[s]))
		}
	})
	c.by("residency_feeds", "Feeds of stores by state.", "state", prometheus.GaugeValue, func(f *figures, add func(string, float64)) {
		for _, s := range states {
			add(string(s), float64(f.stores[s]))
		}
	})
}

// Describe sends every metric's description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range c.metrics {
		ch <- c.metrics[i].desc
	}
}

// Collect takes one reading and sends every metric.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	f := figures{route: c.server.router.Stats(), proxy: c.server.proxy.Stats(), states: map[feed.State]int{}, stores: map[feed.State]int{}}
	f.health = health(&f.route)
	for i := range f.route.Engines {
		f.states[f.route.Engines[i].State]++
	}
	for i := range f.route.Stores {
		f.stores[f.route.Stores[i].State]++
	}
	for i := range c.metrics {
		m := &c.metrics[i]
		m.values(&f, func(label string, v float64) {
			if m.plain {
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v)
			} else {
				ch <- prometheus.MustNewConstMetric(m.desc, m.kind, v, label)
			}
		})
	}
}
