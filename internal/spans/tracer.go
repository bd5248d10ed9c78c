package spans

import (
	"context"
	"fmt"
	"strings"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/zeebo/xxh3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvconn/kvconn/connector"
)

// Tracer makes the spans of a daemon or a router. A nil Tracer makes none. It is safe for concurrent use.
type Tracer struct {
	opts     Options
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
	queue    *queue
	// plans are the traced requests whose saves are in the plans of the last steps, by the hash of the plan.
	plans *lru.Cache[xxh3.Uint128, []planned]
}

// maxPlans bounds the plans that are remembered. A rank carries a plan out within a few steps.
const maxPlans = 1024

// New returns a tracer that sends to o.URL. Nothing is sent before a span has ended, so it need not be there.
func New(o Options) (*Tracer, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	// OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME are how platforms say where a process runs.
	res, err := resource.New(context.Background(), resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Instance),
	), resource.WithHost(), resource.WithFromEnv())
	if err != nil { // a part of it is there
		o.Logger.Warn("spans do not say all about this process", "err", err, "remedy", "check OTEL_RESOURCE_ATTRIBUTES")
	}
	plans, err := lru.New[xxh3.Uint128, []planned](maxPlans)
	if err != nil {
		return nil, err
	}
	t := &Tracer{opts: o, plans: plans}
	e := &exporter{client: o.Client, url: o.URL, headers: o.Headers, agent: "kvconnd/" + o.Version}
	t.queue = newQueue(&t.opts, e.post)
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithSpanProcessor(t.queue),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.Ratio))))
	t.tracer = t.provider.Tracer("github.com/kvconn/kvconn/internal/spans", trace.WithInstrumentationVersion(o.Version))
	return t, nil
}

// Close sends what waits, for [Options].StopTimeout at most. Spans that end later are lost.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.opts.StopTimeout)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // what it could not send is counted
}

// Stats returns the counters, nil of a nil Tracer.
func (t *Tracer) Stats() *Stats {
	if t == nil {
		return nil
	}
	s := t.queue.stats()
	return &s
}

// sampled reports whether a traceparent may be that of a trace that is recorded: a cheap look, made for each request.
func sampled(traceparent string) bool {
	if len(traceparent) != traceparentBytes {
		return false
	}
	switch traceparent[traceparentBytes-1] { // the lowest bit of a hex digit
	case '1', '3', '5', '7', '9', 'b', 'd', 'f', 'B', 'D', 'F':
		return true
	}
	return false
}

const traceparentBytes = 55

// parent is the span that a W3C traceparent names, invalid if it names none.
func parent(traceparent string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": traceparent})
	return trace.SpanContextFromContext(ctx)
}

// traceparent names a span as W3C has it.
func traceparent(c trace.SpanContext) string {
	return fmt.Sprintf("00-%s-%s-%s", c.TraceID(), c.SpanID(), c.TraceFlags())
}

// child begins a span below the one that a traceparent names, nil if that is not recorded.
func (t *Tracer) child(name, of string, opts ...trace.SpanStartOption) trace.Span {
	if !sampled(of) {
		return nil
	}
	at := parent(of)
	if !at.IsSampled() {
		return nil
	}
	_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), at), name, opts...)
	return span
}

// unrecorded reports whether nothing is to be recorded of a request with a traceparent: a cheap look, made for each request.
func (t *Tracer) unrecorded(traceparent string) bool {
	return t.opts.Ratio == 0 && !sampled(traceparent)
}

// begin begins the span of a request below the one that its traceparent names. A request without one begins a trace as the
// ratio says; root says that it does. The span is nil if nothing is recorded.
func (t *Tracer) begin(name, of string, opts ...trace.SpanStartOption) (span trace.Span, root bool) {
	if parent(of).IsValid() {
		return t.child(name, of, opts...), false
	}
	if t.opts.Ratio == 0 {
		return nil, false // what is malformed counts as none
	}
	_, span = t.tracer.Start(context.Background(), name, append(opts, trace.WithNewRoot())...)
	if !span.SpanContext().IsSampled() {
		return nil, false
	}
	return span, true
}

// Engine makes the spans of one engine, or of one of its ranks. A nil Engine makes none. It is safe for concurrent use.
type Engine struct {
	t     *Tracer
	attrs trace.SpanStartEventOption
}

// Engine returns what makes the spans of an engine with an id: nil of a nil Tracer. namespace is the name that people know the
// engine's by.
func (t *Tracer) Engine(id string, m *connector.Manifest, namespace string) *Engine {
	if t == nil {
		return nil
	}
	return &Engine{t: t, attrs: trace.WithAttributes(
		attribute.String("gen_ai.request.model", strings.Clone(m.Model)), attribute.String("kvconn.namespace", namespace), attribute.String("kvconn.engine", id),
	)}
}

// request is the attribute by which vLLM names a request, too.
func request(id string) attribute.KeyValue {
	return attribute.String("gen_ai.request.id", strings.Clone(id))
}
