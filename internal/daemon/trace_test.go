package daemon

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// A worker's line about a failed load has the trace that its engine's scheduler has told, and no
// other engine's.
func TestLinesOfLoadsNameTheRequestsTrace(t *testing.T) {
	var log testlog.Text
	b, _ := newTestBackend(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	m := residencyManifest()
	for engine, trace := range map[string]string{"e": "00-aa-bb-01", "f": "00-cc-dd-01"} {
		s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: engine}, m)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if _, err := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: []uint32{1}, Trace: trace}); err != nil {
			t.Fatal(err)
		}
	}
	w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.Register(t.Context(), registration(t)); err != nil {
		t.Fatal(err)
	}
	transfer := connector.Transfer{Blocks: []connector.PlanBlock{{Slot: 3, Key: connector.Key{1}}}}
	plan := connector.Plan{Namespace: m.Digest(), Loads: []connector.RequestLoad{{Request: "r", Transfers: []connector.Transfer{transfer}}}}
	if _, err := w.Load(t.Context(), plan.Append(nil)); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the line", func() bool { return strings.Contains(log.String(), "load failed") })
	if got := log.String(); !strings.Contains(got, "traceparent=00-aa-bb-01") || strings.Contains(got, "00-cc-dd-01") {
		t.Errorf("want the trace of e in:\n%s", got)
	}
}
