package proxy

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

const (
	ofTrace  = "0af7651916cd43dd8448eb211c80319c"
	ofParent = "b7ad6b7169203331"
	recorded = "00-" + ofTrace + "-" + ofParent + "-01"
)

// traced is a proxy whose spans a collector gets.
func traced(t *testing.T, engines int, ratio float64, change func(*Options)) (*rig, *collector.Collector) {
	t.Helper()
	c := collector.New(t, nil)
	tracer, err := spans.New(spans.Options{URL: c.URL + "/v1/traces", Ratio: ratio, Service: "kvconn-router", StopTimeout: time.Minute, Interval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	f := newFront(t, engines, func(o *Options) {
		o.Spans = tracer.Router("cost")
		if change != nil {
			change(o)
		}
	})
	t.Cleanup(tracer.Close)
	return f, c
}

// only returns the one span that has come.
func only(t *testing.T, c *collector.Collector) collector.Span {
	t.Helper()
	c.Await(t, 1)
	s := c.Spans()
	if len(s) != 1 || s[0].Name != "kvconn.route" || s[0].EndNanos < s[0].StartNanos || s[0].Resource["service.name"] != "kvconn-router" {
		t.Fatalf("%+v", s)
	}
	return s[0]
}

func wantAttributes(t *testing.T, s collector.Span, want map[string]any) {
	t.Helper()
	for k, v := range want {
		if got := s.Attributes[k]; got != v {
			t.Errorf("%s is %v, want %v, of %+v", k, got, v, s)
		}
	}
}

// The second request for a prompt finds it on its rank; the first rank that it is sent to refuses it.
func TestARecordedRequestHasASpanThatIsItsParentAtTheEngine(t *testing.T) {
	f, c := traced(t, 2, 0, nil)
	prompt := `{"model":"m","prompt":"` + strings.Repeat("the quick brown fox ", 10) + `"}` // 200 tokens, blocks of 16
	f.post(t, prompt, PinHeader, "1")                                                       // in no trace
	f.engines[0].Set(enginetest.Refuse)
	resp, body := f.post(t, prompt, PinHeader, "0", "traceparent", recorded, "tracestate", "vendor=1")
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status, body)
	}
	s := only(t, c)
	if s.TraceID != ofTrace || s.ParentID != ofParent || s.Failed {
		t.Errorf("%+v", s)
	}
	wantAttributes(t, s, map[string]any{
		"gen_ai.request.model": "m", "kvconn.policy": "cost", "kvconn.rank": int64(1), "kvconn.reason": "score", "kvconn.prompt_tokens": int64(200),
		"kvconn.cached_tokens": int64(192), "kvconn.cached_tokens.gpu": int64(192), "kvconn.cached_tokens.disk": int64(0), "kvconn.cached_tokens.object": int64(0),
		"kvconn.retries": int64(1), "http.response.status_code": int64(200), "kvconn.outcome": "ok", "error.type": nil,
	})
	if took, _ := s.Attributes["kvconn.placement_seconds"].(float64); took <= 0 || took > float64(s.EndNanos-s.StartNanos)/1e9 {
		t.Errorf("%+v", s)
	}
	for i, e := range f.engines {
		got := e.Requests()
		h := got[len(got)-1].Header
		if h.Get("traceparent") != "00-"+ofTrace+"-"+s.SpanID+"-01" || len(h["Traceparent"]) != 1 || h.Get("tracestate") != "vendor=1" {
			t.Errorf("engine %d: %v", i, h)
		}
	}
	if first := f.engines[1].Requests()[0].Header; len(first["Traceparent"]) != 0 {
		t.Errorf("a request in no trace: %v", first)
	}
}

// What is not recorded is passed on as it came, whether spans are made or not.
func TestRequestsThatAreNotRecordedPassUntouched(t *testing.T) {
	for name, change := range map[string]func(*Options){"on": nil, "off": func(o *Options) { o.Spans = nil }} {
		for _, parents := range [][]string{
			{strings.TrimSuffix(recorded, "1") + "0"}, {"nonsense"}, {strings.Repeat("f", 55)}, {recorded, recorded}, {recorded + "-more"}, {},
		} {
			f, c := traced(t, 1, 0, change)
			headers := []string{"tracestate", "vendor=1"}
			for _, p := range parents {
				headers = append(headers, "traceparent", p)
			}
			f.post(t, plain, headers...)
			f.idle(t)
			h := f.engines[0].Requests()[0].Header
			if strings.Join(h["Traceparent"], ",") != strings.Join(parents, ",") || h.Get("tracestate") != "vendor=1" {
				t.Errorf("%s, %q: %v", name, parents, h)
			}
			if name == "off" {
				f.post(t, plain, "traceparent", recorded)
				if h := f.engines[0].Requests()[1].Header; h.Get("traceparent") != recorded {
					t.Errorf("%v", h)
				}
			}
			if s := c.Spans(); len(s) > 0 {
				t.Errorf("%s, %q: %+v", name, parents, s)
			}
		}
	}
}

// A request without a trace begins one, as the ratio says.
func TestARatioOfRequestsBeginsTraces(t *testing.T) {
	f, c := traced(t, 1, 1, nil)
	f.post(t, plain, "traceparent", "nonsense", "tracestate", "of=nothing")
	s := only(t, c)
	h := f.engines[0].Requests()[0].Header
	if s.ParentID != "" || h.Get("traceparent") != "00-"+s.TraceID+"-"+s.SpanID+"-01" || h.Get("tracestate") != "" {
		t.Errorf("%+v, %v", s, h)
	}
}

// How requests end badly, and who is to blame.
func TestSpansSayHowRequestsEnd(t *testing.T) {
	const stream = `{"model":"m","prompt":"fox","stream":true}`
	long := `{"model":"` + strings.Repeat("é", 300) + `","prompt":"fox"}`
	for name, c := range map[string]struct {
		mode    enginetest.Mode
		body    string
		headers []string
		want    map[string]any
		failed  bool
	}{
		"no JSON":       {enginetest.Serve, "{", nil, map[string]any{"kvconn.outcome": "client_error", "http.response.status_code": int64(400), "kvconn.rank": nil}, false},
		"unknown model": {enginetest.Serve, `{"model":"n","prompt":"x"}`, nil, map[string]any{"kvconn.outcome": "client_error", "http.response.status_code": int64(404), "gen_ai.request.model": "n"}, false},
		"a long name":   {enginetest.Serve, long, nil, map[string]any{"kvconn.outcome": "client_error", "gen_ai.request.model": strings.Repeat("é", 128)}, false},
		"an unknown pin": {enginetest.Serve, plain, []string{PinHeader, "7", StrictHeader, "true"}, map[string]any{
			"kvconn.outcome": "refused", "kvconn.no_rank_reason": "pin_unknown", "http.response.status_code": int64(404), "error.type": nil}, false},
		"a bad prompt": {enginetest.Reject, plain, nil, map[string]any{"kvconn.outcome": "client_error", "http.response.status_code": int64(400), "kvconn.rank": int64(0)}, false},
		"refusals": {enginetest.Refuse, plain, nil, map[string]any{
			"kvconn.outcome": "failed", "http.response.status_code": int64(503), "error.type": "failed", "kvconn.no_rank_reason": "no_ranks", "kvconn.retries": int64(0)}, true},
		"no answer":    {enginetest.Die, plain, nil, map[string]any{"kvconn.outcome": "failed", "http.response.status_code": int64(502), "error.type": "failed"}, true},
		"an error":     {enginetest.Fail, plain, nil, map[string]any{"kvconn.outcome": "failed", "http.response.status_code": int64(500), "error.type": "failed"}, true},
		"a broken one": {enginetest.DieMidStream, stream, nil, map[string]any{"kvconn.outcome": "broken", "http.response.status_code": int64(200), "error.type": "broken"}, true},
		"another path": {enginetest.Serve, stream, nil, map[string]any{"kvconn.outcome": "ok", "kvconn.retries": int64(0)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, col := traced(t, 1, 0, nil)
			f.engines[0].Set(c.mode)
			f.post(t, c.body, append(c.headers, "traceparent", recorded)...)
			s := only(t, col)
			wantAttributes(t, s, c.want)
			if s.Failed != c.failed || s.ParentID != ofParent {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A client that goes away has a span, too; and what is not a completion.
func TestSpansOfClientsThatLeaveAndOfOtherPaths(t *testing.T) {
	f, c := traced(t, 1, 0, nil)
	f.engines[0].Set(enginetest.Hang)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.URL+"/v1/embeddings", strings.NewReader(`{"model":"m","input":"fox"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("traceparent", recorded)
	gone := make(chan error, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
		gone <- err
	}()
	wait.For(t, "the request", func() bool { return len(f.engines[0].Requests()) == 1 })
	leave()
	if err := <-gone; err == nil {
		t.Error("the client got an answer")
	}
	s := only(t, c)
	wantAttributes(t, s, map[string]any{"kvconn.outcome": "left", "http.response.status_code": nil, "kvconn.prompt_tokens": int64(6), "gen_ai.request.model": "m"})
	if s.Failed {
		t.Errorf("%+v", s)
	}
}
