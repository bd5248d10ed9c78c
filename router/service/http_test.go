package service

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

func TestTheTokenIsNeeded(t *testing.T) {
	e := enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.Ranks, o.Token, o.EngineKey = ranksOf(e.URL, 1), "secret", "engine"
	})
	for path, open := range map[string]bool{"/readyz": true, "/openapi.yaml": true, "/healthz": true, "/v1/status": false, "/metrics": false, "/v1/ranks": false, "/v1/models": false} {
		for _, token := range []string{"", "Bearer wrong", "secret", "Bearer secret"} {
			status, _ := r.do("GET", path, nil, nil, "Authorization", token)
			if authorized := open || token == "Bearer secret" || token == "secret"; (status != http.StatusUnauthorized) != authorized {
				t.Errorf("%s with %q: %d", path, token, status)
			}
		}
	}
	wait.For(t, "a rank", func() bool { status, _ := r.do("GET", "/readyz", nil, nil); return status == http.StatusOK })
	if status, text := r.do("POST", "/v1/completions", m{"prompt": "x"}, nil, "Authorization", "Bearer secret"); status != http.StatusOK {
		t.Fatal(text)
	}
	if got := e.Requests()[0].Header.Get("Authorization"); got != "Bearer engine" {
		t.Errorf("the engine was sent %q", got)
	}
}

func TestHealthAndModels(t *testing.T) {
	r := start(t, nil)
	var h Health
	if status, _ := r.do("GET", "/healthz", nil, &h); status != 503 || h.OK || h.Reasons[0].Code != "no_ranks" {
		t.Errorf("%d %+v", status, h)
	}
	e := enginetest.New(t, "m")
	r.do("POST", "/v1/ranks", m{"id": 0, "model": "m", "endpoint": e.URL, "adapters": []string{"tuned"}}, nil)
	r.ready(1)
	if status, text := r.do("GET", "/healthz", nil, &h); status != 200 || !h.OK {
		t.Error(text)
	}
	if _, text := r.do("GET", "/v1/models", nil, nil); !strings.Contains(text, `"max_model_len":4096`) || !strings.Contains(text, `"tuned"`) || !strings.Contains(text, `"list"`) {
		t.Error(text)
	}
	e.Set(enginetest.Refuse)
	r.do("PATCH", "/v1/ranks/0", m{"endpoint": "http://127.0.0.1:1"}, nil)
	wait.For(t, "a bad verdict", func() bool {
		r.do("GET", "/healthz", nil, &h)
		return !h.OK && h.Reasons[0].Code == "no_rank_ready"
	})
}

func TestMetricsHaveBoundedLabels(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://h", 3)...))
	series := func() int {
		_, text := r.do("GET", "/metrics", nil, nil)
		n := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "kvconn_router_") {
				n++
			}
		}
		for _, want := range []string{"kvconn_router_decisions_total{reason=\"score\"}", "kvconn_router_cached_tokens_total{tier=\"disk\"} 0", "kvconn_router_decision_seconds_count"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s is missing", want)
			}
		}
		return n
	}
	before := series()
	for i := range 20 {
		r.do("POST", "/v1/ranks", m{"id": 10 + i, "model": "m" + string(rune('a'+i)), "endpoint": "http://h"}, nil)
		r.route(m{"model": "m" + string(rune('a'+i)), "token_ids": prompt(i, 40)})
	}
	if after := series(); after != before {
		t.Errorf("%d series became %d", before, after)
	}
}

func TestAStopLetsStreamsEnd(t *testing.T) {
	e := enginetest.New(t, "m")
	e.Step = make(chan struct{})
	r := start(t, func(o *Options) { o.Ranks, o.DrainDelay = ranksOf(e.URL, 1), time.Millisecond })
	r.ready(1)
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+"/v1/completions", strings.NewReader(`{"prompt":"x","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	go func() { e.Step <- struct{}{} }()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	r.stop()
	wait.For(t, "no new connections", func() bool {
		fresh := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		other, err := fresh.Get(r.url + "/readyz")
		if err == nil {
			_ = other.Body.Close()
		}
		return err != nil
	})
	close(e.Step)
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), "[DONE]") {
		t.Errorf("%q %v", b, err)
	}
}

// Balancers learn late that a router stops: until drain_delay is over it takes what they still send. The delay is one that
// no machine is too slow for, and nobody waits for its end.
func TestAStoppingRouterAcceptsUntilItsDelayIsOver(t *testing.T) {
	e := enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.Ranks, o.DrainDelay, o.DrainTimeout = ranksOf(e.URL, 1), 10*time.Minute, time.Hour
	})
	r.left = true
	r.ready(1)
	fresh := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r.stop()
	wait.For(t, "readiness to end", func() bool {
		resp, err := fresh.Get(r.url + "/readyz")
		if err != nil {
			t.Fatalf("refused before its delay: %v", err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusServiceUnavailable
	})
	resp, err := http.DefaultClient.Post(r.url+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !resp.Close {
		t.Errorf("%s %s %v, the connection is to be closed: %v", resp.Status, b, err, resp.Close)
	}
	_ = resp.Body.Close()
}

func TestAStoppingRouterEndsAfterItsDelay(t *testing.T) {
	e := enginetest.New(t, "m")
	r := start(t, func(o *Options) { o.Ranks, o.DrainDelay = ranksOf(e.URL, 1), 10*time.Millisecond })
	r.ready(1)
	r.left = true
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	if resp, err := http.Get(r.url + "/readyz"); err == nil {
		_ = resp.Body.Close()
		t.Error("a router that has ended takes connections")
	}
}

// Clients of OpenAI's API find their errors in every answer.
func TestErrorsOfUnknownPathsAreInOpenAIsForm(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://127.0.0.1:1", 1)...))
	for request, want := range map[string]string{
		"GET /other":         "404 not_found",
		"POST /generate":     "404 not_found",
		"POST /flush_cache":  "404 not_found",
		"PUT /v1/files/x":    "404 not_found",
		"GET /v1/route":      "405 method_not_allowed",
		"DELETE /v1/status":  "405 method_not_allowed",
		"POST /healthz":      "405 method_not_allowed",
		"GET /v1/models/no":  "404 model_not_found",
		"POST /v1/ranks/0":   "405 method_not_allowed",
		"GET /v1/ranks/17":   "404 unknown_rank",
		"POST /v1/responses": "502 upstream_failed",
	} {
		method, path, _ := strings.Cut(request, " ")
		if got := r.refused(method, path, nil); got != want {
			t.Errorf("%s: %s, want %s", request, got, want)
		}
	}
}

func TestEnginesOtherPathsAreThere(t *testing.T) {
	e := enginetest.New(t, "org/m")
	r := start(t, func(o *Options) { o.Ranks = ranksOf(e.URL, 1); o.Ranks[0].Model = "org/m" })
	r.ready(1)
	for _, request := range []string{
		"POST /v1/embeddings", "POST /v1/responses", "GET /v1/responses/resp_1", "POST /v1/messages", "POST /v1/messages/count_tokens",
		"POST /v1/audio/transcriptions", "POST /tokenize", "POST /detokenize", "POST /rerank", "POST /v2/rerank", "GET /version",
	} {
		method, path, _ := strings.Cut(request, " ")
		if status, text := r.do(method, path, `{"model":"org/m","prompt":"x"}`, nil); status != http.StatusOK {
			t.Errorf("%s: %d %s", request, status, text)
		}
	}
	var model Model
	if status, _ := r.do("GET", "/v1/models/org/m", nil, &model); status != http.StatusOK || model.ID != "org/m" || model.OwnedBy != "test" {
		t.Errorf("%d %+v", status, model)
	}
}

func TestOtherPathsNeedTheToken(t *testing.T) {
	r := start(t, func(o *Options) { unchecked(ranksOf("http://127.0.0.1:1", 1)...)(o); o.Token = "secret" })
	for _, request := range []string{"POST /v1/embeddings", "GET /v1/models/m", "GET /version", "POST /tokenize"} {
		method, path, _ := strings.Cut(request, " ")
		if got := r.refused(method, path, nil); got != "401 unauthorized" {
			t.Errorf("%s: %s", request, got)
		}
	}
}
