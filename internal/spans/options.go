// Package spans makes the OpenTelemetry spans of a daemon and of a router: what the cache did for a request and where it was
// sent, in the request's trace. It sends them by OTLP over HTTP. No engine and no client waits for that: spans pass through a
// bounded queue, and what does not fit is dropped and counted.
//
// It uses OpenTelemetry's SDK for spans, sampling and identifiers. It does not use its exporter, which brings gRPC into the
// program (5 MB), nor its queue, which does not tell what it has dropped.
package spans

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"
)

// Options configure a [Tracer].
type Options struct {
	// URL is where spans are posted to: that of a collector, such as http://127.0.0.1:4318/v1/traces.
	URL string
	// Headers are sent with each post, for collectors that want a key. They are secret, and never logged.
	Headers map[string]string
	// Ratio is the share of requests without a trace of their own that begin one: 0 to 1. Default 0: a request is traced where
	// the client or the engine has decided so.
	Ratio float64
	// Service is what makes the spans, as collectors show it. Default kvconnd.
	Service string
	// Version is that of the program, Instance tells this process from others.
	Version, Instance string
	// QueueSpans bounds the spans that wait to be sent. Default 2048, as in OpenTelemetry's SDKs: about 4 MB.
	QueueSpans int
	// BatchSpans are sent at most in one post, and a span waits for others no longer than Interval. Defaults 256 and 2 s.
	BatchSpans int
	Interval   time.Duration
	// Timeout bounds one post. Default 10 s, OpenTelemetry's.
	Timeout time.Duration
	// StopTimeout bounds the sending of what still waits when the tracer is closed. Default 1 s.
	StopTimeout time.Duration
	// Client makes the posts. Default: one that follows no redirect, since that would take the headers elsewhere.
	Client *http.Client
	// Logger is told when spans are lost. Default: nothing.
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Service = cmp.Or(o.Service, "kvconnd")
	o.QueueSpans = cmp.Or(o.QueueSpans, 2048)
	o.BatchSpans = cmp.Or(o.BatchSpans, 256)
	o.Interval = cmp.Or(o.Interval, 2*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, time.Second)
	if o.Client == nil {
		o.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.URL == "":
		return errors.New("spans: no URL")
	case o.Ratio < 0 || o.Ratio > 1 || math.IsNaN(o.Ratio):
		return fmt.Errorf("spans: the ratio is %v, want 0 to 1", o.Ratio)
	case o.QueueSpans < 1 || o.BatchSpans < 1:
		return errors.New("spans: queue and batch must have room for a span")
	case o.Interval <= 0 || o.Timeout <= 0 || o.StopTimeout <= 0:
		return errors.New("spans: times must be positive")
	}
	return nil
}

// Stats counts spans since the start. The tags are those of package counters.
type Stats struct {
	Exported uint64 `json:"exported" metric:"exported_total" help:"Spans that the collector has taken."`
	// Queue counts spans that found the queue full, Collector those that the collector did not take.
	Queue     uint64 `json:"dropped_queue" metric:"dropped_total" label:"reason=queue" help:"Spans that were lost: the queue was full because the collector is slow or gone, or the collector did not take them."`
	Collector uint64 `json:"dropped_collector" metric:"dropped_total" label:"reason=collector"`
}
