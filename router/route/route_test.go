package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/prompts"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/registry"
)

// newRouter is a router with ranks 0 to n-1 of model m, all ready.
func newRouter(t testing.TB, n int, change func(*Options)) *Router {
	t.Helper()
	o := Options{AssumeReady: true, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	r, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	var ranks []registry.Rank
	for i := range n {
		ranks = append(ranks, rank(i))
	}
	add(t, r, ranks...)
	return r
}

func rank(id int) registry.Rank {
	return registry.Rank{ID: int32(id), Model: "m", Endpoint: fmt.Sprintf("http://h%d:8000", id)}
}

func add(t testing.TB, r *Router, specs ...registry.Rank) {
	t.Helper()
	if err := r.Add(specs...); err != nil {
		t.Fatal(err)
	}
}

// prompt is a prompt of n tokens of its own.
func prompt(seed, n int) []uint32 { return prompts.Of(uint64(seed), n) }

func ask(t testing.TB, r *Router, req Request) Decision {
	t.Helper()
	var d Decision
	if err := r.Route(t.Context(), &req, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func free(tokens []uint32) Request {
	return Request{Request: policy.Request{Pin: policy.NoPin}, Model: "m", Prompt: tokens}
}

func TestWhatWasJustRoutedCountsAsThere(t *testing.T) {
	r := newRouter(t, 4, nil)
	first := ask(t, r, free(prompt(1, 4096)))
	if !first.Placed() || first.Handle == 0 || first.Endpoint == "" || first.Header != "" {
		t.Fatalf("%+v", first)
	}
	r.Finish(first.Handle)
	again := ask(t, r, free(prompt(1, 4096)))
	if again.Rank != first.Rank || again.Match.GPU != 4096-16 {
		t.Errorf("%+v after %+v", again, first)
	}
	other := free(prompt(1, 4096))
	other.Scope.Salt = "tenant"
	if d := ask(t, r, other); d.Match.Usable != 0 {
		t.Errorf("another scope's blocks count: %+v", d)
	}
}

func TestApproximationsEndWithTheirTimeAndTheirRank(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	r := newRouter(t, 1, func(o *Options) {
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	ask(t, r, free(prompt(1, 64)))
	if d := ask(t, r, free(prompt(1, 64))); d.Match.GPU != 64-16 {
		t.Errorf("%+v", d)
	}
	r.SetReady(0, false, "test")
	r.SetReady(0, true, "")
	if p, err := r.Prefixes("m", prompt(1, 64), connector.Scope{}); err != nil || p[0].Match.GPU != 0 {
		t.Errorf("the rank was restarted, and has %+v, %v", p, err)
	}
	ask(t, r, free(prompt(1, 64)))
	mu.Lock()
	now = now.Add(3 * time.Minute)
	mu.Unlock()
	r.index.Expire(r.opts.Now())
	if p, _ := r.Prefixes("m", prompt(1, 64), connector.Scope{}); p[0].Match.GPU != 0 {
		t.Errorf("%+v is there after its time", p)
	}
}

func TestRefusalsSayWhy(t *testing.T) {
	r := newRouter(t, 0, nil)
	var d Decision
	req := free(prompt(1, 64))
	if err := r.Route(t.Context(), &req, &d); !errors.Is(err, ErrUnknownModel) || d.Placed() {
		t.Errorf("no rank registered: %v, %+v", err, d)
	}
	for i := range 2 {
		spec := rank(i)
		spec.MaxActive = 1
		add(t, r, spec)
	}
	pin := func(id int32, strict bool) Decision {
		req := free(prompt(2, 64))
		req.Pin, req.Strict = id, strict
		return ask(t, r, req)
	}
	if d := pin(1, true); d.Rank != 1 || d.Reason != policy.ReasonPin {
		t.Errorf("%+v", d)
	}
	if d := pin(1, true); d.Placed() || d.Reason != policy.ReasonPinFull || d.Handle != 0 || d.Endpoint != "" {
		t.Errorf("strict pin on a full rank: %+v", d)
	}
	if d := pin(7, true); d.Reason != policy.ReasonPinUnknown {
		t.Errorf("strict pin on an unknown rank: %+v", d)
	}
	if d := pin(1, false); d.Rank != 0 || d.PinMissed != policy.ReasonPinFull {
		t.Errorf("relaxed pin on a full rank: %+v", d)
	}
	if d := ask(t, r, req); d.Reason != policy.ReasonAllFull {
		t.Errorf("all full: %+v", d)
	}
	r.SetReady(1, false, "gone")
	if d := pin(1, true); d.Reason != policy.ReasonPinNotReady {
		t.Errorf("strict pin on a rank that is gone: %+v", d)
	}
	r.SetReady(0, false, "gone")
	if d := ask(t, r, req); d.Reason != policy.ReasonNoRanks {
		t.Errorf("none ready: %+v", d)
	}
	req.Model = "other"
	if err := r.Route(t.Context(), &req, &d); !errors.Is(err, ErrUnknownModel) {
		t.Error(err)
	}
}

func TestPromptsOfNothingAndOfTwoMillionTokens(t *testing.T) {
	r := newRouter(t, 2, nil)
	if d := ask(t, r, free([]uint32{})); !d.Placed() {
		t.Errorf("%+v", d)
	}
	if d := ask(t, r, Request{Request: policy.Request{Pin: policy.NoPin}}); !d.Placed() || d.Model != "m" {
		t.Errorf("no model named, no tokens: %+v", d)
	}
	long := free(prompt(1, 2<<20))
	long.Pin = 0
	if d := ask(t, r, long); !d.Placed() {
		t.Errorf("%+v", d)
	}
	if d := ask(t, r, long); d.Match.GPU+ask(t, r, long).Match.GPU < 2<<20 {
		t.Errorf("%+v", d)
	}
	long.Prompt = append(long.Prompt, 1)
	if err := r.Route(t.Context(), &long, new(Decision)); !errors.Is(err, ErrPromptTooLong) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Route(ctx, &long, new(Decision)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestAThousandRanks(t *testing.T) {
	r := newRouter(t, 1000, nil)
	seen := map[int32]bool{}
	for i := range 200 {
		d := ask(t, r, free(prompt(i, 128)))
		seen[d.Rank] = true
	}
	if len(seen) < 195 {
		t.Errorf("200 different prompts went to %d of 1,000 ranks", len(seen))
	}
	req := free(prompt(1, 128))
	req.Explain = true
	if d := ask(t, r, req); len(d.Scores) != 1000 || len(d.matches) != 1000 {
		t.Errorf("%d scores, %d matches", len(d.Scores), len(d.matches))
	}
}

func TestReportsMoveTheLoad(t *testing.T) {
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	r := newRouter(t, 1, func(o *Options) {
		o.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	})
	d := ask(t, r, free(prompt(1, 4096)))
	info, _ := r.Rank(0)
	if info.Load.QueuedRequests != 1 || info.Load.QueuedTokens != 4096 || info.Speed.PrefillTokens != 0 {
		t.Errorf("%+v", info)
	}
	mu.Lock()
	now = now.Add(500 * time.Millisecond)
	mu.Unlock()
	again := r.PrefillDone
	if !r.PrefillDone(d.Handle) || !again(d.Handle) || !r.Output(d.Handle, 32) {
		t.Error("the request is not known")
	}
	info, _ = r.Rank(0)
	if info.Load.QueuedRequests != 0 || info.Load.ActiveRequests != 1 || info.Load.OutputTokens != 32 || info.Speed.PrefillTokens != 8192 {
		t.Errorf("%+v", info)
	}
	if !r.Finish(d.Handle) || r.Finish(d.Handle) || r.PrefillDone(d.Handle) {
		t.Error("a request finishes once")
	}
	if info, _ = r.Rank(0); info.Load.ActiveRequests != 0 {
		t.Errorf("%+v", info)
	}
}
