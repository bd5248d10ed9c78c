package publish

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/event"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// begun is what a replay has before its first block, and how many blocks it has.
type begun struct{ cleared, late, blocks int }

func (b *begun) Stored(e *event.Stored) { b.blocks += len(e.Hashes) }
func (b *begun) Removed(*event.Removed) {}
func (b *begun) Cleared() {
	if b.cleared++; b.blocks > 0 {
		b.late++
	}
}

// replayed is a publisher's replay as of now.
func replayed(t *testing.T, p *Publisher) (b begun) {
	t.Helper()
	c, err := zmtp.DialDealer(t.Context(), "tcp://"+p.ReplayAddr().String(), zmtp.ConnOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d := event.NewDecoder(event.Limits{})
	if err := c.Replay(0, time.Minute, func(_ uint64, payload []byte) bool {
		_, err := d.Decode(payload, &b)
		return err == nil
	}); err != nil {
		t.Fatal(err)
	}
	return b
}

// laggingSource is a store of which the first subscription fell behind.
type laggingSource struct {
	*disk.Store
	subscriptions int
}

func (s *laggingSource) Subscribe(ctx context.Context) (store.Subscription, error) {
	if s.subscriptions++; s.subscriptions == 1 {
		return nil, store.ErrLagged
	}
	return s.Store.Subscribe(ctx)
}

// run publishes a source until the test ends.
func run(t *testing.T, o Options, s Source) *Publisher {
	t.Helper()
	o.Endpoint, o.ReplayEndpoint, o.Logger = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", quiet()
	p, err := New(t.Context(), o, s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return p
}

// Who followed a former process holds its blocks until it is told that they are gone; and a publisher that
// fell behind its store goes on.
func TestPublishingBeginsWithNothingAndBeginsAgain(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 5, 0, 1)
	p := run(t, Options{}, &laggingSource{Store: s})
	var got begun
	for end := time.Now().Add(time.Minute); got.blocks < 5 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got = replayed(t, p)
	}
	if got != (begun{cleared: 1, blocks: 5}) {
		t.Errorf("%+v", got)
	}
}

func TestNamespacesThatAreNotAcceptedAreNotPublished(t *testing.T) {
	s, ns := openStore(t)
	other, err := s.OpenNamespace(&connector.Manifest{
		Engine: "test/1", Model: "other", KVDType: "bfloat16", BlockSize: 16, TensorParallel: 2, PipelineParallel: 1,
		Groups:    []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"}},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	})
	if err != nil {
		t.Fatal(err)
	}
	save(t, s, ns, 0, 5, 0, 1)
	save(t, s, other, 100, 107, 0, 1)
	p := run(t, Options{Accept: func(_ connector.NamespaceDigest, m *connector.Manifest) bool { return m.Model == "other" }}, s)
	var got begun
	for end := time.Now().Add(time.Minute); got.blocks < 7 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got = replayed(t, p)
	}
	if got.blocks != 7 {
		t.Errorf("%+v", got)
	}
}
