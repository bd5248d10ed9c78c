// Package collector is an OpenTelemetry collector for tests: it takes traces by OTLP over HTTP, as protobuf.
package collector

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// Span is one that came.
type Span struct {
	Name, TraceID, SpanID, ParentID string
	StartNanos, EndNanos            uint64
	Failed                          bool
	// Attributes are those of the span, Resource those of the process: strings, int64, float64 or bool.
	Attributes, Resource map[string]any
}

// Collector keeps what it is sent. It is safe for concurrent use.
type Collector struct {
	*httptest.Server
	mu      sync.Mutex
	spans   []Span
	headers http.Header
}

// New serves a collector on loopback until the test ends. answer, if not nil, answers a post instead where it returns true.
func New(t testing.TB, answer func(http.ResponseWriter, *http.Request) bool) *Collector {
	c := new(Collector)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		if answer != nil && answer(w, r) {
			return
		}
		body, err := io.ReadAll(r.Body)
		var m tracepb.TracesData // an ExportTraceServiceRequest, by its bytes
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" || proto.Unmarshal(body, &m) != nil {
			t.Errorf("a post of %d bytes of %q is no traces: %v", len(body), r.Header.Get("Content-Type"), err)
			http.Error(w, "no traces", http.StatusBadRequest)
			return
		}
		c.take(&m, r.Header)
		w.Header().Set("Content-Type", "application/x-protobuf")
	})
	c.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

func (c *Collector) take(m *tracepb.TracesData, h http.Header) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = h
	for _, r := range m.ResourceSpans {
		for _, s := range r.ScopeSpans {
			for _, p := range s.Spans {
				c.spans = append(c.spans, Span{
					Name: p.Name, TraceID: hex.EncodeToString(p.TraceId), SpanID: hex.EncodeToString(p.SpanId), ParentID: hex.EncodeToString(p.ParentSpanId),
					StartNanos: p.StartTimeUnixNano, EndNanos: p.EndTimeUnixNano, Failed: p.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR,
					Attributes: values(p.Attributes), Resource: values(r.Resource.GetAttributes()),
				})
			}
		}
	}
}

func values(list []*commonpb.KeyValue) map[string]any {
	out := make(map[string]any)
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.Key] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			out[kv.Key] = v.DoubleValue
		case *commonpb.AnyValue_BoolValue:
			out[kv.Key] = v.BoolValue
		}
	}
	return out
}

// Spans are those that have come.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Span(nil), c.spans...)
}

// Named are those of a name.
func (c *Collector) Named(name string) (out []Span) {
	for _, s := range c.Spans() {
		if s.Name == name {
			out = append(out, s)
		}
	}
	return out
}

// Header is one of the last post.
func (c *Collector) Header(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.headers.Get(name)
}

// Await waits for n spans.
func (c *Collector) Await(t testing.TB, n int) {
	t.Helper()
	wait.For(t, "the spans", func() bool { return len(c.Spans()) >= n })
}
