package publish

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
)

// failingSource is a store whose first subscriptions fail.
type failingSource struct {
	*disk.Store
	err  error
	left int
}

func (f *failingSource) Subscribe(ctx context.Context) (store.Subscription, error) {
	if f.left--; f.left >= 0 {
		return nil, f.err
	}
	return f.Store.Subscribe(ctx)
}

// A subscriber that followed a former process holds its blocks until it hears that they are gone; and a
// publisher that fell behind its store goes on.
func TestPublishingBeginsWithNothingAndBeginsAgain(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 5, 0, 1)
	p := run(t, Options{}, &failingSource{Store: s, err: store.ErrLagged, left: 1})
	if h := published(t, p, 5); h.cleared != 1 || h.late != 0 {
		t.Errorf("%+v", h)
	}
	if st := p.Stats(); st.Failures != 0 {
		t.Errorf("%+v", st)
	}
}

// Engines do not need published events: the daemon goes on and tries again.
func TestPublishingThatBreaksOffBeginsAgain(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 5, 0, 1)
	p := run(t, Options{Retry: time.Millisecond}, &failingSource{Store: s, err: errors.New("not now"), left: 3})
	endpoint := p.Stats().ReplayEndpoint
	wait.For(t, "the fourth attempt", func() bool { st := p.Stats(); return st.Failures == 3 && st.Error == "" })
	if h := published(t, p, 5); h.cleared != 1 {
		t.Errorf("%+v", h)
	}
	st := p.Stats()
	if st.Failures != 3 || st.Error != "" || st.ReplayEndpoint != endpoint {
		t.Errorf("%+v", st)
	}
}

func TestWhatWasCountedStaysWhenPublishingBreaksOff(t *testing.T) {
	s, ns := openStore(t)
	save(t, s, ns, 0, 5, 0, 1)
	p, err := New(t.Context(), Options{Endpoint: "tcp://127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)}, s)
	if err != nil {
		t.Fatal(err)
	}
	p.now.send(p.now.encode.cleared())
	before := p.Stats()
	p.broke(errors.New("the end"))
	if st := p.Stats(); before.Batches != 1 || st.Batches != 1 || st.Error != "the end" || st.Failures != 1 {
		t.Errorf("%+v, before %+v", st, before)
	}
}

func TestNamespacesThatAreNotAcceptedAreNotPublished(t *testing.T) {
	s, ns := openStore(t)
	other := openNamespace(t, s, "other")
	save(t, s, ns, 0, 5, 0, 1)
	save(t, s, other, 100, 107, 0, 1)
	p := run(t, Options{Accept: func(_ connector.NamespaceDigest, m *connector.Manifest) bool { return m.Model == "other" }}, s)
	if h := published(t, p, 7); len(h.hashes) != 7 {
		t.Errorf("%+v", h)
	}
}

// listing is a store that counts how often it is asked for its namespaces.
type listing struct {
	*disk.Store
	asked atomic.Int64
}

func (l *listing) Namespaces() []store.NamespaceInfo {
	l.asked.Add(1)
	return l.Store.Namespaces()
}

func TestASnapshotListsTheNamespacesOnce(t *testing.T) {
	s, _ := openStore(t)
	const n = 5
	for i := range n {
		save(t, s, openNamespace(t, s, strconv.Itoa(i)), i, i+1, 0, 1)
	}
	source := &listing{Store: s}
	published(t, run(t, Options{}, source), n)
	if asked := source.asked.Load(); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}
