// Package observe has the metrics that no struct of counters can hold: how long things took, and which build this is.
package observe

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/counters"
	"github.com/kvconn/kvconn/worker"
)

// Times are the histograms of a daemon. They have classic buckets, and native ones for Prometheus servers that ask for
// them. It is safe for concurrent use.
type Times struct {
	match, loadWait, save, saveWait prometheus.Histogram
	loads                           *prometheus.HistogramVec
	// load is the histogram of each tier, the fastest first, and none that of loads that brought nothing.
	load [3]tierTimes
	none prometheus.Observer
}

type tierTimes struct {
	tier  string
	times prometheus.Observer
}

var (
	_ prometheus.Collector = (*Times)(nil)
	_ worker.Observer      = (*Times)(nil)
)

// Help texts of the histograms, by the names of their metrics.
const (
	matchHelp    = "Time to answer an engine that asks how much of a prompt is stored. The engine's scheduler waits for it."
	loadHelp     = "Time of a load of one rank, by the slowest tier that it read from; tier none is for loads that brought nothing. Loads that the engine cancelled are left out."
	loadWaitHelp = "Time from the start of a load until its first block was in the host tier: the wait for memory, for the disk's queue and for its first read."
	saveHelp     = "Time to save blocks that were copied together, from the start of their copy until the last of them was written."
	saveWaitHelp = "Time that saves waited for the copies of earlier ones. Only saves that run in the background wait: those of GPUs, and those of engines with keys of their own."
)

// Durations in seconds that buckets end at.
func microseconds() []float64 {
	return []float64{2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1}
}

func milliseconds() []float64 {
	return []float64{5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
}

// Histogram returns the options of a histogram of durations: classic buckets, and native ones that are a tenth apart and
// bounded in number.
func Histogram(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: buckets,
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
	}
}

// NewTimes returns a daemon's histograms.
func NewTimes() *Times {
	t := &Times{
		match:    prometheus.NewHistogram(Histogram("kvconn_match_duration_seconds", matchHelp, microseconds())),
		loadWait: prometheus.NewHistogram(Histogram("kvconn_load_wait_seconds", loadWaitHelp, milliseconds())),
		save:     prometheus.NewHistogram(Histogram("kvconn_save_duration_seconds", saveHelp, milliseconds())),
		saveWait: prometheus.NewHistogram(Histogram("kvconn_save_wait_seconds", saveWaitHelp, milliseconds())),
		loads:    prometheus.NewHistogramVec(Histogram("kvconn_load_duration_seconds", loadHelp, milliseconds()), []string{"tier"}),
	}
	for i, tier := range [...]string{"host", "disk", "object"} {
		t.load[i] = tierTimes{tier, t.loads.WithLabelValues(tier)}
	}
	t.none = t.loads.WithLabelValues("none")
	return t
}

func (t *Times) each(do func(prometheus.Collector)) {
	for _, c := range [...]prometheus.Collector{t.match, t.loads, t.loadWait, t.save, t.saveWait} {
		do(c)
	}
}

// Describe sends the descriptions of the histograms.
func (t *Times) Describe(ch chan<- *prometheus.Desc) {
	t.each(func(c prometheus.Collector) { c.Describe(ch) })
}

// Collect sends the histograms.
func (t *Times) Collect(ch chan<- prometheus.Metric) {
	t.each(func(c prometheus.Collector) { c.Collect(ch) })
}

// Matched takes in the time of a match that began then. It does not allocate.
func (t *Times) Matched(began time.Time) { t.match.Observe(time.Since(began).Seconds()) }

// LoadEnded takes in a load.
func (t *Times) LoadEnded(l *worker.Load) {
	t.slowest(l.Tiers).Observe(l.Took.Seconds())
	if l.Waited >= 0 {
		t.loadWait.Observe(l.Waited.Seconds())
	}
}

// slowest is the histogram of the slowest of some tiers.
func (t *Times) slowest(of []connector.TierBlocks) prometheus.Observer {
	for i := len(t.load) - 1; i >= 0; i-- {
		for j := range of {
			if of[j].Tier == t.load[i].tier {
				return t.load[i].times
			}
		}
	}
	return t.none
}

// SaveStarted takes in how long a save waited.
func (t *Times) SaveStarted(waited time.Duration) { t.saveWait.Observe(waited.Seconds()) }

// SaveEnded takes in how long a save took.
func (t *Times) SaveEnded(_ context.Context, s *worker.Save) { t.save.Observe(s.Took.Seconds()) }

// List describes the histograms of [Times].
func List() []counters.Metric {
	h := func(name, help string, labels ...string) counters.Metric {
		return counters.Metric{Name: name, Help: help, Kind: "histogram", Labels: labels}
	}
	return []counters.Metric{
		h("kvconn_match_duration_seconds", matchHelp), h("kvconn_load_duration_seconds", loadHelp, "tier"),
		h("kvconn_load_wait_seconds", loadWaitHelp), h("kvconn_save_duration_seconds", saveHelp), h("kvconn_save_wait_seconds", saveWaitHelp),
	}
}
