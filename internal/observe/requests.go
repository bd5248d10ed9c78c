package observe

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvconn/kvconn/internal/counters"
)

// Requests are the histograms of a router's requests by model. It is safe for concurrent use.
type Requests struct {
	first, whole *prometheus.HistogramVec

	mu     sync.RWMutex
	models map[string]requestTimes
}

type requestTimes struct{ first, whole prometheus.Observer }

var _ prometheus.Collector = (*Requests)(nil)

const (
	firstTokenHelp = "Time from a streamed request's arrival until its first byte went to the client, by model. Tokenizing, retries and the engine's queue are included."
	requestHelp    = "Time from a request's arrival until the end of its answer, by model, of requests that were answered well."
)

// Bounds of the label model: names come from clients.
const (
	maxModels     = 32
	maxModelBytes = 128
	otherModels   = "other"
	unnamedModel  = "unnamed"
)

// seconds are the ends of buckets for requests to engines.
func seconds() []float64 {
	return []float64{0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 150, 300}
}

// NewRequests returns a router's histograms.
func NewRequests() *Requests {
	vec := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(Histogram(name, help, seconds()), []string{"model"})
	}
	return &Requests{
		first:  vec("kvconn_router_time_to_first_token_seconds", firstTokenHelp),
		whole:  vec("kvconn_router_request_duration_seconds", requestHelp),
		models: make(map[string]requestTimes),
	}
}

// Describe sends the descriptions of the histograms.
func (r *Requests) Describe(ch chan<- *prometheus.Desc) {
	r.first.Describe(ch)
	r.whole.Describe(ch)
}

// Collect sends the histograms.
func (r *Requests) Collect(ch chan<- prometheus.Metric) {
	r.first.Collect(ch)
	r.whole.Collect(ch)
}

// FirstToken takes in the time to a streamed answer's first byte.
func (r *Requests) FirstToken(model string, took time.Duration) {
	r.of(model).first.Observe(took.Seconds())
}

// Answered takes in the time of a request that was answered.
func (r *Requests) Answered(model string, took time.Duration) {
	r.of(model).whole.Observe(took.Seconds())
}

// of returns the histograms of a model. The first maxModels names have their own, the rest share one.
func (r *Requests) of(model string) requestTimes {
	r.mu.RLock()
	t, ok := r.models[model]
	r.mu.RUnlock()
	if ok {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name := strings.ToValidUTF8(model[:min(len(model), maxModelBytes)], "")
	switch {
	case name == "":
		name = unnamedModel
	case len(r.models) >= maxModels:
		return r.make(otherModels)
	}
	t = r.make(name)
	if len(r.models) < maxModels {
		r.models[strings.Clone(model[:min(len(model), maxModelBytes)])] = t
	}
	return t
}

func (r *Requests) make(name string) requestTimes {
	return requestTimes{r.first.WithLabelValues(name), r.whole.WithLabelValues(name)}
}

// RequestList describes the histograms of [Requests].
func RequestList() []counters.Metric {
	return []counters.Metric{
		{Name: "kvconn_router_time_to_first_token_seconds", Help: firstTokenHelp, Kind: "histogram", Labels: []string{"model"}},
		{Name: "kvconn_router_request_duration_seconds", Help: requestHelp, Kind: "histogram", Labels: []string{"model"}},
	}
}
