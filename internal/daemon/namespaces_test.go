package daemon

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/tiertest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// A namespace that stays open is never forgotten. Each session closes it once, and so does one that
// is refused.
func TestSessionsCloseTheirNamespace(t *testing.T) {
	tier := tiertest.NewMemory(tiertest.Options{})
	a, err := host.New(host.Options{Bytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	o := &Options{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	o.EnsureDefaults()
	b := newBackend(o, store.NewChain(tier), a)
	for _, scheme := range []string{connector.KeySchemeTokens, connector.KeySchemeEngine} {
		m := manifests.New(func(m *connector.Manifest) { m.KeyScheme = scheme })
		ns := m.Digest()
		opened := 0
		for _, handoff := range []bool{false, true} {
			_, err := b.OpenScheduler(t.Context(), server.Peer{Engine: "e", Handoff: handoff}, m)
			if led := scheme == connector.KeySchemeTokens; led != (err == nil) {
				t.Fatalf("scheduler with key scheme %s: %v", scheme, err)
			} else if led {
				opened++
			}
		}
		if _, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, 0); err != nil {
			t.Fatal(err)
		}
		opened++
		if _, err := b.OpenWorker(t.Context(), server.Peer{Engine: "e"}, m, m.Ranks()); err == nil {
			t.Fatal("a rank outside of the grid is served")
		}
		wait.For(t, "refused sessions close their namespace", func() bool { return tier.Opened(ns) == opened })
		for s := range b.schedulers {
			s.Close()
		}
		for w := range b.workers {
			w.Close()
		}
		wait.For(t, "ended sessions close their namespace", func() bool {
			b.status(time.Now()) // which looks for workers that have ended
			return tier.Opened(ns) == 0
		})
	}
}
