package daemon

import (
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/residency/publish"
)

// published counts what events say.
type published struct{ stored, removed, cleared int }

func (p *published) Stored(e *event.Stored)   { p.stored += len(e.Hashes) }
func (p *published) Removed(e *event.Removed) { p.removed += len(e.Hashes) }
func (p *published) Cleared()                 { p.cleared++ }

// replayed is what a daemon's published events say from the first on.
func replayed(t *testing.T, endpoint string) published {
	t.Helper()
	c, err := zmtp.DialDealer(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	var p published
	d := event.NewDecoder()
	if err := c.Replay(0, testWait, func(_ uint64, payload []byte) bool {
		if _, err := d.Decode(payload, &p); err != nil {
			t.Error(err)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// publishing has a daemon publish on ports that are free.
func publishing(o *Options) {
	o.Publish = &publish.Options{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", Topic: "kv"}
}

func TestADaemonPublishesWhatItsStoreHolds(t *testing.T) {
	r := start(t, publishing)
	// The daemon is ready before the first batch is out.
	wait.For(t, "the first batch", func() bool {
		s, err := FetchStatus(t.Context(), r.HTTP)
		return err == nil && s.Publish.Batches == 1
	})
	if p := replayed(t, r.EventsReplay); p.stored != 0 || p.cleared != 1 {
		t.Errorf("of an empty store: %+v", p)
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	r.done <- nil // for the clean-up
	if c, err := net.Dial("tcp", strings.TrimPrefix(r.Events, "tcp://")); err == nil {
		_ = c.Close()
		t.Error("the endpoint is open after the stop")
	}

	dir := t.TempDir()
	fillStore(t, dir, 40)
	r = start(t, func(o *Options) {
		publishing(o)
		o.Dir = dir
	})
	sub, err := zmtp.DialSub(t.Context(), r.Events, "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Close() }()
	wait.For(t, "40 blocks and a subscriber", func() bool {
		s, err := FetchStatus(t.Context(), r.HTTP)
		return err == nil && s.Publish.Subscribers == 1 && s.Publish.Batches == 2
	})
	if p := replayed(t, r.EventsReplay); p.stored != 40 || p.cleared != 1 || p.removed != 0 {
		t.Errorf("after a restart: %+v", p)
	}
	_, metrics := r.get("/metrics")
	for _, line := range []string{"kvconn_publish_subscribers 1\n", "kvconn_publish_batches_total 2\n", "kvconn_publish_failures_total 0\n"} {
		if !strings.Contains(metrics, line) {
			t.Errorf("no %q in the metrics", line)
		}
	}
}

// fillStore writes a prompt of n blocks of two shards to a store that no daemon has open.
func fillStore(t *testing.T, dir string, n int) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{
		Dir: dir, MaxBytes: 64 << 20, SegmentBytes: 1 << 20, BarrierInterval: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := s.OpenNamespace(residencyManifest())
	if err != nil {
		t.Fatal(err)
	}
	residencySave(t, s, ns, residencyChain(connector.Scope{}, 1, n), 0, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestEndpointsThatAreTakenAreAnErrorAtTheStart(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	base := t.TempDir()
	o := Options{
		Dir: base + "/store", Socket: base + "/s", MaxBytes: 64 << 20,
		Publish: &publish.Options{Endpoint: "tcp://" + l.Addr().String()},
	}
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "publish residency") {
		t.Errorf("Run = %v", err)
	}
}
