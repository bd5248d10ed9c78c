package service

import (
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// A router that is asked to sends the spans of what it forwards, counts them, and sends the last of them when it stops.
func TestSpansOfForwardedRequestsReachACollector(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	c, e := collector.New(t, nil), enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.Ranks = ranksOf(e.URL, 1)
		o.Spans = &spans.Options{URL: c.URL + "/v1/traces", Headers: map[string]string{"Authorization": "Bearer k"}, Version: "1.2.3"}
	})
	r.ready(1)
	ask := func() {
		t.Helper()
		if status, text := r.do("POST", "/v1/completions", m{"model": "m", "prompt": prompt(1, 100)}, nil, "traceparent", trace); status != 200 {
			t.Fatal(text)
		}
	}
	ask()
	c.Await(t, 1)
	s := c.Spans()[0]
	if s.Attributes["kvconn.policy"] != "cost" || s.Attributes["kvconn.prompt_tokens"] != int64(100) || s.ParentID != trace[36:52] || c.Header("Authorization") != "Bearer k" {
		t.Errorf("%+v", s)
	}
	if s.Resource["service.name"] != "kvconn-router" || s.Resource["service.version"] != "1.2.3" || s.Resource["service.instance.id"] == "" {
		t.Errorf("%+v", s.Resource)
	}
	if got := e.Requests()[0].Header.Get("traceparent"); got != "00-"+s.TraceID+"-"+s.SpanID+"-01" {
		t.Errorf("the engine got %q of %+v", got, s)
	}
	wait.For(t, "a count", func() bool {
		var st Status
		r.do("GET", "/v1/status", nil, &st)
		return st.Spans != nil && st.Spans.Exported == 1
	})
	if _, text := r.scrape(""); !strings.Contains(text, "\nkvconn_router_spans_exported_total 1\n") {
		t.Error(text)
	}
	ask()
	r.stop()
	c.Await(t, 2)
}

// Without the setting the status says nothing of spans, and their metrics stay 0.
func TestARouterMakesNoSpansByDefault(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://127.0.0.1:1", 1)...))
	if _, text := r.do("GET", "/v1/status", nil, nil); strings.Contains(text, "spans") {
		t.Error(text)
	}
	if _, text := r.scrape(""); !strings.Contains(text, "\nkvconn_router_spans_exported_total 0\n") {
		t.Error(text)
	}
}
