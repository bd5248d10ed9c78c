package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
)

// A rank that describes its KV in another way than its scheduler would never find anything: the log and the status
// say so, once, with the fields that differ and what to do.
func TestRankInAnotherNamespaceThanItsSchedulerIsTold(t *testing.T) {
	var log bytes.Buffer
	b, _ := newTestBackend(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	m, changed := residencyManifest(), residencyManifest()
	changed.Extra = map[string]string{"config": "as the loading left it"}
	peer := server.Peer{Engine: "e"}
	connect := func(tell string, open func() (interface{ Close() }, error)) interface{ Close() } {
		t.Helper()
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		engines, _, _ := b.status(time.Now())
		for _, e := range engines {
			if (e.NotReady != "") != (tell != "") || !strings.Contains(e.NotReady, tell) {
				t.Errorf("not ready %q, want %q", e.NotReady, tell)
			}
		}
		return s
	}
	leader := func() (interface{ Close() }, error) { return b.OpenScheduler(t.Context(), peer, m) }
	rank := func(rank int, same bool) func() (interface{ Close() }, error) {
		return func() (interface{ Close() }, error) {
			if same {
				return b.OpenWorker(t.Context(), peer, m, rank)
			}
			return b.OpenWorker(t.Context(), peer, changed, rank)
		}
	}
	// Workers connect before the scheduler.
	first := connect("", rank(1, false))
	s := connect("rank 1 is in another namespace than the scheduler: their manifests differ in extra.config", leader)
	defer s.Close()
	defer connect("rank 1 ", rank(0, true)).Close()
	second := connect("rank 1 ", rank(1, false))
	first.Close()
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "remedy=") {
		t.Errorf("%d warnings, want 1 with a remedy: %s", n, log.String())
	}
	// An engine that starts again with the same id may have sessions that have not ended yet.
	defer connect("", rank(1, true)).Close()
	second.Close()
	if !strings.Contains(log.String(), "all ranks can load") {
		t.Errorf("the log does not say that it is over: %s", log.String())
	}
}

// Engines with one id, of two models or settings, have each a scheduler.
func TestEnginesOfOneIDAndTwoNamespacesAreReady(t *testing.T) {
	b, _ := newTestBackend(t, nil)
	for _, name := range []string{"a", "b"} {
		m := manifests.Model(name)
		s, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e"}, m)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		w, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
	}
	engines, _, _ := b.status(time.Now())
	for _, e := range engines {
		if e.NotReady != "" {
			t.Errorf("%s: %s", e.Model, e.NotReady)
		}
	}
}
