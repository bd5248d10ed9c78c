package service

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
)

func TestSeveralRequestsAreAnsweredEach(t *testing.T) {
	e := enginetest.New(t, "m")
	r := start(t, func(o *Options) {
		o.Ranks, o.HealthInterval = ranksOf(e.URL, 2), -1
		o.Route.MaxPromptTokens = 1000
	})
	var got RouteResults
	status, text := r.do("POST", "/v1/route", m{"requests": []any{
		m{"token_ids": prompt(1, 100), "conversation_id": "c"},
		m{"prompt": "hello", "explain": true},
		m{"model": "x", "token_ids": []int{1}},
		m{"token_ids": prompt(2, 1001)},
		m{"prompt": 5},
		m{"token_ids": []int{1}, "pin": m{"rank": 7, "strict": true}, "explain": true},
		nil,
	}}, &got, front.SessionHeader, "of nobody")
	want := []string{"200 ", "200 ", "404 model_not_found", "400 prompt_too_long", "400 invalid_request", "404 pin_unknown", "400 invalid_request"}
	if status != http.StatusOK || len(got.Results) != len(want) {
		t.Fatalf("%d %s", status, text)
	}
	for i, x := range got.Results {
		code := ""
		if x.Failure != nil {
			code = x.Error.Code
		}
		if fmt.Sprint(x.Status, " ", code) != want[i] || (x.Decision != nil) == (x.Failure != nil) {
			t.Errorf("request %d: %+v, want %s", i, x, want[i])
		}
	}
	first, second := got.Results[0].Decision, got.Results[1].Decision
	if first.Rank == second.Rank || first.Headers["X-Session-ID"] != "c" || second.Headers["X-Session-ID"] != "" || first.PromptTokens != 100 ||
		second.PromptTokens != len("hello") || len(second.Scores) != 2 || len(got.Results[5].Scores) != 2 {
		t.Errorf("%+v\n%+v", first, second)
	}
	for _, d := range []*RouteAnswer{first, second} {
		if status, _ := r.do("POST", "/v1/requests/"+d.Request+"/finished", nil, nil); status != http.StatusNoContent {
			t.Errorf("request %s is not known: %d", d.Request, status)
		}
	}
}

func TestABatchIsBounded(t *testing.T) {
	r := start(t, unchecked(ranksOf("http://h:1", 1)...))
	list := func(n int) string {
		return `{"requests":[` + strings.TrimSuffix(strings.Repeat(`{"token_ids":[1]},`, n), ",") + `]}`
	}
	if status, text := r.do("POST", "/v1/route", list(maxBatch), nil); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	for _, body := range []string{list(0), list(maxBatch + 1), `{"requests":{}}`, `{"requests":[1]}`, `{"requests":null}`} {
		if got := r.refused("POST", "/v1/route", body); got != "400 invalid_request" {
			t.Errorf("%.40s: %s", body, got)
		}
	}
}

// Policies that answer exactly as published place the requests of a batch by their own order: the longest first.
func TestAPublishedPolicyPlacesABatch(t *testing.T) {
	for name, want := range map[string]string{"published/load": "[1 1 0 0]", "round-robin": "[0 1 0 1]"} {
		r := start(t, func(o *Options) {
			unchecked(registry.Rank{ID: 0, Model: "m", Endpoint: "http://h:1", MaxActive: 8}, registry.Rank{ID: 1, Model: "m", Endpoint: "http://h:2", MaxActive: 8})(o)
			o.Policy.Name = name
		})
		var got RouteResults
		r.do("POST", "/v1/route", m{"requests": []m{{"token_ids": prompt(1, 100)}, {"token_ids": prompt(2, 200)}, {"token_ids": prompt(3, 300)}, {"token_ids": prompt(4, 50)}}}, &got)
		var ranks []int32
		for _, x := range got.Results {
			ranks = append(ranks, x.Decision.Rank)
		}
		if fmt.Sprint(ranks) != want {
			t.Errorf("%s: %v, want %s", name, ranks, want)
		}
	}
}

// A list may have a hundred times as many requests as are allowed in the same number of bytes.
func TestALongListIsNotReadToItsEnd(t *testing.T) {
	list := []byte("[" + strings.Repeat("{},", 1<<18) + "{}]")
	if n := testing.AllocsPerRun(1, func() {
		if _, err := batchOf(list); err == nil {
			t.Error("the list was accepted")
		}
	}); n > 20*maxBatch {
		t.Errorf("%v allocations", n)
	}
}

func TestTokenizersThatHangDelayABatchForABoundedTime(t *testing.T) {
	var calls atomic.Int64
	e := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // else nobody notices that the client goes
		<-r.Context().Done()
	}))
	t.Cleanup(e.Close)
	r := start(t, func(o *Options) {
		unchecked(ranksOf(e.URL, 1)...)(o)
		o.TokenizeTimeout = 20 * time.Millisecond
	})
	var list []m
	for range maxBatch {
		list = append(list, m{"prompt": "hello"})
	}
	var got RouteResults
	r.do("POST", "/v1/route", m{"requests": list}, &got)
	for i, x := range got.Results {
		if x.Decision == nil || !strings.HasPrefix(x.Decision.Note, "routed by load") {
			t.Fatalf("request %d: %+v", i, x)
		}
	}
	if n := calls.Load(); n > (readTimeouts+1)*readAtOnce {
		t.Errorf("%d requests were tokenized without success", n)
	}
}

// With thousands of ranks and hundreds of requests an answer would have hundreds of megabytes.
func TestTheScoresOfABatchAreBounded(t *testing.T) {
	const ranks, explained = 128, 128 // 16,384 scores
	r := start(t, unchecked(ranksOf("http://h:1", ranks)...))
	list := []m{{"token_ids": []int{1}}}
	for range maxBatch - 1 {
		list = append(list, m{"token_ids": []int{1}, "explain": true})
	}
	var got RouteResults
	r.do("POST", "/v1/route", m{"requests": list}, &got)
	for i, x := range got.Results {
		want, note := 0, ""
		switch {
		case i > explained:
			note = "not explained: the batch has too many scores"
		case i > 0:
			want = ranks
		}
		if x.Decision == nil || len(x.Decision.Scores) != want || x.Decision.Note != note {
			t.Fatalf("request %d: %+v", i, x)
		}
	}
}
