package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/demo"
	"github.com/kvconn/kvconn/internal/testkit/collector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// tracedDaemon is `kvconnd serve` in this process.
type tracedDaemon struct {
	socket string
	log    testlog.Text
	stop   context.CancelFunc
	done   chan error
}

func serveTraced(t *testing.T, args ...string) *tracedDaemon {
	t.Helper()
	base := t.TempDir()
	d := &tracedDaemon{socket: filepath.Join(base, "s"), done: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	d.stop = stop
	p, err := newParser(ctx, new(cli), &terminal.Streams{Out: io.Discard, Err: &d.log}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	command, err := p.Parse(append([]string{
		"serve", "--dir", filepath.Join(base, "d"), "--socket", d.socket, "--http", "off", "--max-bytes", "64MiB", "--host-bytes", "64MiB",
	}, args...))
	if err != nil {
		t.Fatal(err)
	}
	go func() { d.done <- command.Run() }()
	t.Cleanup(stop)
	wait.For(t, "the daemon", func() bool { return strings.Contains(d.log.String(), "msg=ready") })
	return d
}

// ask has a fresh engine, whose own cache is empty, complete a prompt.
func (d *tracedDaemon) ask(t *testing.T, id, trace string) {
	t.Helper()
	var in, out bytes.Buffer
	if err := json.NewEncoder(&in).Encode(map[string]any{"id": id, "tokens": make([]uint32, 100), "max_tokens": 2, "traceparent": trace}); err != nil {
		t.Fatal(err)
	}
	if err := demo.ServeEngine(t.Context(), demo.EngineOptions{Socket: d.socket, Logger: slog.New(slog.DiscardHandler)}, &in, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
}

func (d *tracedDaemon) stopped(t *testing.T) {
	t.Helper()
	d.stop()
	if err := <-d.done; err != nil {
		t.Fatalf("%v\n%s", err, &d.log)
	}
}

// A collector gets the spans of a match, a save and a load of the built-in engine, below the span that each request names.
func TestTracesOfRequestsReachACollector(t *testing.T) {
	c := collector.New(t, nil)
	t.Setenv("KVCONN_OTLP_HEADERS", "authorization=Bearer%20secret")
	d := serveTraced(t, "--otlp-endpoint", c.URL, "--log-level", "debug")
	trace := func(n int) string { return fmt.Sprintf("00-%032x-%016x-01", n, 10+n) }
	of := func(name string, n int) (out []collector.Span) {
		for _, s := range c.Named(name) {
			if s.TraceID == fmt.Sprintf("%032x", n) && s.ParentID == fmt.Sprintf("%016x", 10+n) {
				out = append(out, s)
			}
		}
		return out
	}
	d.ask(t, "cold", trace(1))
	wait.For(t, "the span of the save", func() bool { return len(of("kvconn.save", 1)) > 0 })
	d.ask(t, "warm", trace(2))
	d.ask(t, "other", "") // no trace, and none begins
	d.ask(t, "unwatched", strings.TrimSuffix(trace(3), "1")+"0")
	d.stopped(t)

	match := of("kvconn.match", 1)
	if len(match) != 1 || match[0].Attributes["kvconn.no_offer_reason"] != "not_stored" || match[0].Attributes["kvconn.queried_tokens"] != int64(100) ||
		match[0].Attributes["gen_ai.request.id"] != "cold" || match[0].Attributes["gen_ai.request.model"] == "" {
		t.Errorf("cold match: %+v", match)
	}
	saved := int64(0)
	for _, s := range of("kvconn.save", 1) {
		if s.Failed || s.EndNanos < s.StartNanos {
			t.Errorf("%+v", s)
		}
		saved += s.Attributes["kvconn.batch_bytes"].(int64)
	}
	match, load := of("kvconn.match", 2), of("kvconn.load", 2)
	if len(match) != 1 || len(load) != 1 {
		t.Fatalf("%+v\n%s", c.Spans(), &d.log)
	}
	offered, loaded := match[0].Attributes["kvconn.offered_tokens"], load[0].Attributes["kvconn.loaded_bytes"]
	if offered != int64(96) || match[0].Attributes["kvconn.offered_tokens.host"] != offered {
		t.Errorf("warm match: %+v", match)
	}
	if load[0].Failed || load[0].Attributes["kvconn.loaded_blocks"] != int64(6) || loaded.(int64) > saved || loaded.(int64)*2 < saved ||
		load[0].StartNanos < match[0].EndNanos || load[0].Attributes["gen_ai.request.id"] != "warm" {
		t.Errorf("load: %+v, saved %d bytes", load, saved)
	}
	for _, s := range c.Spans() {
		if id := s.Attributes["gen_ai.request.id"]; id != "cold" && id != "warm" || s.Resource["service.name"] != "kvconnd" {
			t.Errorf("%+v", s)
		}
	}
	if c.Header("Authorization") != "Bearer secret" || strings.Contains(d.log.String(), "secret") {
		t.Errorf("Authorization %q, log:\n%s", c.Header("Authorization"), &d.log)
	}
}

// With a ratio, requests without a trace begin one that all their spans are in.
func TestARatioOfRequestsBeginsTraces(t *testing.T) {
	c := collector.New(t, nil)
	d := serveTraced(t, "--otlp-endpoint", c.URL, "--otlp-trace-ratio", "1")
	d.ask(t, "cold", "")
	wait.For(t, "the span of the save", func() bool { return len(c.Named("kvconn.save")) > 0 })
	d.ask(t, "warm", "")
	d.stopped(t)
	match := make(map[any]collector.Span)
	for _, s := range c.Named("kvconn.match") {
		match[s.Attributes["gen_ai.request.id"]] = s
	}
	if len(match) != 2 || match["cold"].TraceID == match["warm"].TraceID || len(c.Named("kvconn.load")) != 1 {
		t.Fatalf("%+v", c.Spans())
	}
	for _, s := range c.Spans() {
		if m := match[s.Attributes["gen_ai.request.id"]]; s.TraceID != m.TraceID || s.Name == "kvconn.match" && s.ParentID != "" || s.Name != "kvconn.match" && s.ParentID != m.SpanID {
			t.Errorf("%+v of %+v", s, m)
		}
	}
}

// Engines and the stop don't wait for a collector that hangs.
func TestACollectorThatHangsCostsADaemonNothing(t *testing.T) {
	release := make(chan struct{})
	c := collector.New(t, func(http.ResponseWriter, *http.Request) bool {
		<-release
		return true
	})
	defer close(release)
	d := serveTraced(t, "--otlp-endpoint", c.URL, "--otlp-trace-ratio", "1")
	d.ask(t, "a", "")
	d.ask(t, "b", "")
	d.stopped(t)
	if !strings.Contains(d.log.String(), "spans were lost") || !strings.Contains(d.log.String(), "stopped gracefully") {
		t.Errorf("log:\n%s", &d.log)
	}
}
