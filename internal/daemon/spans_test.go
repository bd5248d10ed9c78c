package daemon

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

const keyedTrace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// An engine that brings its own keys tells a request's trace once; its loads have another id than the request.
func TestLoadsByKeyJoinTheRequestsTrace(t *testing.T) {
	c := collector.New(t, nil)
	tracer, err := spans.New(spans.Options{URL: c.URL + "/v1/traces", StopTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	var log testlog.Text
	b, _ := newTestBackend(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	b.tracer = tracer
	m := keyedManifest()
	m.TensorParallel = 1
	w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	putBlocks(t, w)
	ask := func(request, trace string) byte {
		groups, err := w.Present(t.Context(), &connector.PresentRequest{Request: request, Hashes: keyedBlocks(3)[0].Hashes, Trace: trace}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return groups[0][0]
	}
	wait.For(t, "the blocks are written", func() bool { return ask("early", "") == 7 })
	ask("r", keyedTrace)
	ask("r", keyedTrace) // again: no other span
	ask("s", "")
	fetch := func(id, request string, n int) {
		if err := w.Fetch(t.Context(), &connector.KeyedMove{ID: id, Request: request, Parts: keyedBlocks(n)}); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the load is reported", func() bool {
			p, err := w.Poll(t.Context())
			return err == nil && len(p.Finished) == 1
		})
	}
	fetch("load 1", "r", 3)
	fetch("load 2", "s", 3)
	fetch("load 3", "r", 4) // the last is not there
	fetch("load 1", "s", 3) // the id of an earlier load
	if r, err := w.FetchWait(t.Context(), &connector.KeyedMove{ID: "load 4", Request: "r", Parts: keyedBlocks(3), Wait: time.Minute}); err != nil || len(r.Done) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := w.Touch(t.Context(), &connector.TouchRequest{Request: "r"}); err != nil {
		t.Fatal(err)
	}
	fetch("load 5", "r", 3) // after its end
	tracer.Close()
	match, loads := c.Named("kvconn.match"), c.Named("kvconn.load")
	if len(match) != 1 || match[0].Attributes["kvconn.offered_tokens"] != int64(3*m.BlockSize) || match[0].Attributes["gen_ai.request.id"] != "r" {
		t.Errorf("%+v", match)
	}
	if len(loads) != 3 || len(c.Spans()) != 4 {
		t.Fatalf("%+v", c.Spans())
	}
	for i, s := range loads {
		if s.TraceID != keyedTrace[3:35] || s.ParentID != keyedTrace[36:52] || s.Attributes["gen_ai.request.id"] != "r" || s.Failed != (i == 1) {
			t.Errorf("%d: %+v", i, s)
		}
	}
	if got := strings.Count(log.String(), "traceparent="); got != 1 {
		t.Errorf("%d lines with a trace:\n%s", got, &log)
	}
}

// An engine's scheduler and its ranks wait for these calls, which cost what they cost without traces.
func TestADaemonWithoutTracesAllocatesNothingForThem(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	s, w := openEngine(t, b, residencyManifest())
	defer s.Close()
	defer w.Close()
	leader, ctx := s.(*schedulerSession).Leader, t.Context()
	m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}
	_, _ = s.Match(ctx, &m)
	m.From, m.Tokens = 64, nil
	step := connector.StepRequest{}
	for name, pair := range map[string][2]func(){
		"match": {func() { _, _ = leader.Match(ctx, &m) }, func() { _, _ = s.Match(ctx, &m) }},
		"step":  {func() { _, _ = leader.Step(ctx, &step) }, func() { _, _ = s.Step(ctx, &step) }},
	} {
		without, with := testing.AllocsPerRun(100, pair[0]), testing.AllocsPerRun(100, pair[1])
		if with > without {
			t.Errorf("%s: %v allocations, %v of them the leader's", name, with, without)
		}
	}
}
