package spans

import (
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// Router makes the spans of the requests that a router forwards. A nil Router makes none. It is safe for concurrent use.
type Router struct {
	t     *Tracer
	attrs trace.SpanStartEventOption
}

// Router returns what makes the spans of a router that decides by a policy: nil of a nil Tracer.
func (t *Tracer) Router(policy string) *Router {
	if t == nil {
		return nil
	}
	return &Router{t: t, attrs: trace.WithAttributes(attribute.String("kvconn.policy", policy))}
}

// The headers of W3C that name a trace, as net/http writes them.
const (
	traceHeader = "Traceparent"
	stateHeader = "Tracestate"
)

// Route is the span of one request on its way through a router. A nil Route is that of a request that is not recorded: its
// methods do nothing, and allocate nothing. It is for one goroutine.
type Route struct {
	span    trace.Span
	root    bool // it began the trace
	placed  bool
	began   time.Time
	retries int
}

// Begin begins the span of a request with these headers. It returns nil if the request is in no trace that is recorded. A
// request without a trace may begin one.
func (r *Router) Begin(h http.Header) *Route {
	if r == nil {
		return nil
	}
	of := ""
	if list := h[traceHeader]; len(list) == 1 { // several name none, as W3C has it
		of = list[0]
	}
	if r.t.unrecorded(of) {
		return nil
	}
	now := time.Now()
	span, root := r.t.begin("kvconn.route", of, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(now), r.attrs)
	if span == nil {
		return nil
	}
	return &Route{span: span, root: root, began: now}
}

// Model notes the model that the client names.
func (r *Route) Model(name string) {
	if r != nil {
		r.span.SetAttributes(attribute.String("gen_ai.request.model", bounded(name)))
	}
}

// Placement is the rank that a request is sent to, and how many of the prompt's tokens are expected not to be computed
// there: because its GPU has them, or to be loaded from its node's store or a bucket.
type Placement struct {
	Rank                                int32
	Reason                              string
	PromptTokens                        int
	GPUTokens, DiskTokens, ObjectTokens int32
}

// Placed notes where the request is sent, once for each try.
func (r *Route) Placed(p Placement) {
	if r == nil {
		return
	}
	if r.placed {
		r.retries++
	} else {
		r.span.SetAttributes(attribute.Float64("kvconn.placement_seconds", time.Since(r.began).Seconds()))
	}
	r.placed = true
	r.span.SetAttributes(
		attribute.Int("kvconn.rank", int(p.Rank)), attribute.String("kvconn.reason", p.Reason), attribute.Int("kvconn.prompt_tokens", p.PromptTokens),
		attribute.Int("kvconn.cached_tokens", int(p.GPUTokens+p.DiskTokens+p.ObjectTokens)), attribute.Int("kvconn.cached_tokens.gpu", int(p.GPUTokens)),
		attribute.Int("kvconn.cached_tokens.disk", int(p.DiskTokens)), attribute.Int("kvconn.cached_tokens.object", int(p.ObjectTokens)),
	)
}

// Unplaced notes why no rank takes the request, or no other one after the last has failed.
func (r *Route) Unplaced(reason string) {
	if r != nil {
		r.span.SetAttributes(attribute.String("kvconn.no_rank_reason", reason))
	}
}

// Inject makes the span the parent of what is sent with these headers.
func (r *Route) Inject(h http.Header) {
	if r == nil {
		return
	}
	h[traceHeader] = []string{traceparent(r.span.SpanContext())}
	if r.root {
		delete(h, stateHeader) // of no trace
	}
}

// Answered notes how the request ended, as the label outcome of the metrics has it, and the status of the answer, 0 if the client
// has got none. why is what went wrong if the router or the ranks are to blame, else "".
func (r *Route) Answered(outcome string, status int, why string) {
	if r == nil {
		return
	}
	r.span.SetAttributes(attribute.String("kvconn.outcome", outcome))
	if status != 0 {
		r.span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
	if why != "" {
		failed(r.span, outcome, bounded(why))
	}
}

// End ends the span.
func (r *Route) End() {
	if r != nil {
		r.span.SetAttributes(attribute.Int("kvconn.retries", r.retries))
		r.span.End()
	}
}

// maxTextBytes bounds a text that a client or an engine may choose.
const maxTextBytes = 256

// bounded returns a copy of the beginning of a text, which does not keep the rest in memory.
func bounded(s string) string { return strings.Clone(s[:min(len(s), maxTextBytes)]) }
