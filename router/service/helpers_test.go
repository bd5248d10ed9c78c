package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/prompts"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/front"
	"github.com/kvconn/kvconn/router/registry"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// running is a router in this process.
type running struct {
	t    *testing.T
	url  string
	stop context.CancelFunc
	done chan error
	left bool // the test does not wait for its end
}

// start runs a router. It ends with the test.
func start(t *testing.T, change func(*Options)) *running {
	t.Helper()
	ready := make(chan string, 1)
	o := Options{HTTP: "127.0.0.1:0", Version: "test", Logger: quiet(), HealthBackoff: 5 * time.Millisecond, DrainDelay: -1, TokenizeTimeout: 20 * time.Second, Ready: func(addr string) { ready <- addr }}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: t, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- Run(ctx, o) }()
	select {
	case addr := <-ready:
		r.url = "http://" + addr
	case err := <-r.done:
		t.Fatalf("the router ended: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if r.left {
			return
		}
		if err := <-r.done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// do makes a request; body is sent as JSON unless it is a string, and out read from JSON unless nil.
func (r *running) do(method, path string, body, out any, headers ...string) (status int, text string) {
	r.t.Helper()
	var b []byte
	switch v := body.(type) {
	case nil:
	case string:
		b = []byte(v)
	default:
		var err error
		if b, err = json.Marshal(v); err != nil {
			r.t.Fatal(err)
		}
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(b))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if out != nil {
		if err := json.Unmarshal(got, out); err != nil {
			r.t.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, got)
		}
	}
	return resp.StatusCode, string(got)
}

// route asks for a decision that has to be made.
func (r *running) route(body any) (a RouteAnswer) {
	r.t.Helper()
	if status, text := r.do("POST", "/v1/route", body, nil); status != http.StatusOK || json.Unmarshal([]byte(text), &a) != nil {
		r.t.Fatalf("route: %d %s", status, text)
	}
	return a
}

// refused asks for something that has to be refused, and returns status and code.
func (r *running) refused(method, path string, body any) string {
	r.t.Helper()
	var f front.Failure
	status, _ := r.do(method, path, body, &f)
	if f.Error.Message == "" {
		r.t.Errorf("%s %s: %d without a message", method, path, status)
	}
	return fmt.Sprint(status, " ", f.Error.Code)
}

// ranksOf are ranks 0 to n-1 of one endpoint.
func ranksOf(endpoint string, n int) (list []registry.Rank) {
	for i := range n {
		list = append(list, registry.Rank{ID: int32(i), Model: "m", Endpoint: endpoint, DPMode: registry.Internal, DPRank: i})
	}
	return list
}

// unchecked is for ranks without engines.
func unchecked(ranks ...registry.Rank) func(*Options) {
	return func(o *Options) { o.HealthInterval, o.Ranks = -1, ranks }
}

type m = map[string]any

func prompt(seed, n int) []uint32 { return prompts.Of(uint64(seed), n) }

// ready waits until n ranks are.
func (r *running) ready(n int) {
	r.t.Helper()
	wait.For(r.t, fmt.Sprint(n, " ranks ready"), func() bool {
		var s Status
		r.do("GET", "/v1/status", nil, &s)
		return s.Ready == n
	})
}
