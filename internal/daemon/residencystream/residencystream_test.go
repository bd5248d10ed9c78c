package residencystream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/residency"
)

// follow follows a tier's stream into a real index.
func follow(t *testing.T, url, tier string) (*feed.Residency, func() int64) {
	t.Helper()
	x, err := prefix.New(prefix.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := x.AddHolder(prefix.KeyDomain)
	if err != nil {
		t.Fatal(err)
	}
	f, err := feed.NewResidency(feed.ResidencyOptions{
		URL: url, Tier: tier, BlockSize: blocksize.Of(storetest.SmallBlockTokens), Logger: slog.New(slog.DiscardHandler), ReconnectMin: time.Millisecond,
		Holder: func(_ connector.NamespaceDigest, m *connector.Manifest) (prefix.Holder, bool) {
			return h, m.Model == "m"
		},
	}, x)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, func() int64 { return x.HolderBlocks(h) }
}

// Prompts come and, under a small cap, go, before and after the router begins to follow.
func TestARouterKnowsExactlyWhatAStoreHolds(t *testing.T) {
	s, ns := storetest.Small(t, 12<<20)
	server := httptest.NewServer(New(t.Context(), s, nil, nil))
	t.Cleanup(server.Close)
	var chains [][]connector.Key
	save := func(prompts int) {
		for range prompts {
			chains = append(chains, storetest.SmallChain(connector.Scope{}, len(chains), 20))
			storetest.SaveSmall(t, s, ns, chains[len(chains)-1], 0, 1)
		}
	}
	save(30)
	f, blocks := follow(t, server.URL, residency.Disk)
	wait.For(t, "a snapshot", func() bool { return f.Stats().State == feed.StateSynced })
	save(30)
	half := storetest.SmallChain(connector.Scope{}, 1000, 5)
	storetest.SaveSmall(t, s, ns, half, 1)
	complete := func() (n int64) {
		for _, keys := range chains {
			for _, k := range keys[1:] {
				if storetest.Has(s, store.RecordID{Namespace: ns, Shard: 0, Key: k}) && storetest.Has(s, store.RecordID{Namespace: ns, Shard: 1, Key: k}) {
					n++
				}
			}
		}
		return n
	}
	wait.For(t, "the same blocks", func() bool { return blocks()+int64(f.Stats().Waiting) == complete() })
	n := complete()
	if st := f.Stats(); n == 0 || n == 60*20 || st.Gaps != 0 || st.Malformed != 0 || st.Snapshots != 1 || st.Refused != 0 || st.Dropped != 0 {
		t.Errorf("%d blocks, %+v", n, st)
	}
	wait.For(t, "the blocks that lack a shard", func() bool { return f.Stats().Incomplete >= 5 })
}

func TestPromptsOfAScopeWaitForItsRoot(t *testing.T) {
	s, ns := storetest.Small(t, 12<<20)
	server := httptest.NewServer(New(t.Context(), s, nil, nil))
	t.Cleanup(server.Close)
	keys := storetest.SmallChain(connector.Scope{Salt: "tenant"}, 1, 3)
	storetest.SaveSmall(t, s, ns, keys, 0, 1)
	f, blocks := follow(t, server.URL, residency.Disk)
	wait.For(t, "waiting blocks", func() bool { return f.Stats().Waiting == 3 && blocks() == 0 })
	f.NoteRoot(keys[0])
	if n := blocks(); n != 3 {
		t.Errorf("%d blocks", n)
	}
}

func TestALostStreamIsResumedWithoutASnapshot(t *testing.T) {
	s, ns := storetest.Small(t, 12<<20)
	handler := New(t.Context(), s, nil, nil)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	f, blocks := follow(t, server.URL, residency.Disk)
	wait.For(t, "a snapshot", func() bool { return f.Stats().State == feed.StateSynced })
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 3), 0, 1)
	wait.For(t, "three blocks", func() bool { return blocks() == 3 })
	server.CloseClientConnections()
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 2, 3), 0, 1)
	wait.For(t, "six blocks", func() bool { return blocks() == 6 })
	if st := f.Stats(); st.Snapshots != 1 || st.Resumed == 0 {
		t.Errorf("%+v", st)
	}
}

// A router of the release before takes a namespace's number for what it was in the stream before: its request to
// resume, which does not say numbers=stream, is answered with a snapshot.
func TestARouterOfTheReleaseBeforeNeverResumes(t *testing.T) {
	s, ns := storetest.Small(t, 12<<20)
	storetest.SaveSmall(t, s, ns, storetest.SmallChain(connector.Scope{}, 1, 3), 0, 1)
	server := httptest.NewServer(New(t.Context(), s, nil, nil))
	t.Cleanup(server.Close)
	// begin asks for a stream that goes on at a position, and returns its hello and the position after its snapshot.
	begin := func(q url.Values, from residency.Position) (residency.Hello, residency.Position) {
		resp, err := http.Get(server.URL + "?" + q.Encode())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		r := residency.NewReader(resp.Body, from)
		frame, err := r.Next()
		hello, ok := frame.(residency.Hello)
		for done := hello.Resumed; ok && err == nil && !done; {
			frame, err = r.Next()
			_, done = frame.(residency.SnapshotEnd)
		}
		if !ok || err != nil {
			t.Fatalf("%+v: %v", frame, err)
		}
		return hello, r.Position()
	}
	first, at := begin(nil, residency.Position{})
	old := at.Query()
	old.Del("numbers")
	before, _ := begin(old, at)
	now, _ := begin(at.Query(), at)
	if first.Resumed || before.Resumed || !now.Resumed {
		t.Errorf("resumed: at first %t, before %t, now %t", first.Resumed, before.Resumed, now.Resumed)
	}
}

// readToEnd reads a stream up to its end, and returns how many frames came and what ended it.
func readToEnd(body io.Reader, from residency.Position) (frames int, err error) {
	r := residency.NewReader(body, from)
	for ; ; frames++ {
		if _, err = r.Next(); err != nil {
			return frames, err
		}
	}
}

func TestAStreamSaysThatTheDaemonStops(t *testing.T) {
	s, _ := storetest.Small(t, 12<<20)
	ctx, stop := context.WithCancel(t.Context())
	server := httptest.NewServer(New(ctx, s, nil, nil))
	t.Cleanup(server.Close)
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	stop()
	if _, err := readToEnd(resp.Body, residency.Position{}); !errors.Is(err, residency.ErrEnded) || !strings.Contains(err.Error(), "stopping") {
		t.Error(err)
	}
}

// laggingSource is a store whose subscriber falls behind after the snapshot.
type laggingSource struct{ namespaces []store.NamespaceInfo }

func (laggingSource) Epoch() uint64                       { return 7 }
func (laggingSource) Usage() store.Usage                  { return store.Usage{} }
func (s laggingSource) Namespaces() []store.NamespaceInfo { return s.namespaces }
func (laggingSource) Seq() uint64                         { return 0 }
func (laggingSource) Close() error                        { return nil }
func (laggingSource) Snapshot(context.Context, func(store.Resident) error) error {
	return nil
}
func (laggingSource) Next(context.Context) ([]store.Event, error) {
	return nil, fmt.Errorf("events after 3: %w", store.ErrLagged)
}
func (s laggingSource) Subscribe(context.Context) (store.Subscription, error) { return s, nil }
func (s laggingSource) SubscribeAfter(_, _ uint64) (store.Subscription, error) {
	return nil, store.ErrLagged
}

func laggingHandler(t *testing.T, streams, snapshots int) *handler {
	return &handler{
		ctx: t.Context(), disk: laggingSource{},
		streams: httplimit.NewShares(streams), snapshots: httplimit.NewShares(snapshots),
	}
}

func TestAReaderThatFallsBehindIsTold(t *testing.T) {
	h := laggingHandler(t, 1, 1)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/residency?epoch=7&after=3&numbers=stream", nil))
	frames, err := readToEnd(w.Body, residency.Position{})
	if !errors.Is(err, residency.ErrEnded) || !strings.Contains(err.Error(), "lagged") || frames != 2 {
		t.Errorf("%v after %d frames", err, frames)
	}
}

func TestStreamsAndSnapshotsAreBounded(t *testing.T) {
	for _, c := range []struct {
		streams, snapshots int
		why                string
	}{{0, 9, "too many residency streams"}, {9, 0, "too many snapshots"}} {
		h := laggingHandler(t, c.streams, c.snapshots)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/residency", nil))
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), c.why) || w.Header().Get("Retry-After") == "" {
			t.Errorf("status %d, %s", w.Code, w.Body)
		}
		if n := h.streams.Taken() + h.snapshots.Taken(); n != 0 {
			t.Errorf("%d are still taken", n)
		}
	}
}

// Streams that one local user holds, as many as it can, leave room for others.
func TestOneClientCannotShutRoutersOut(t *testing.T) {
	s, _ := storetest.Small(t, 12<<20)
	handler := New(t.Context(), s, nil, nil)
	var client atomic.Value // of the requests to come
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = client.Load().(string) + ":1"
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	open := func(from string) (int, io.Closer) {
		client.Store(from)
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp.StatusCode, resp.Body
	}
	got := 0
	for range 2 * maxStreams {
		if code, _ := open("192.0.2.1"); code == http.StatusOK {
			got++
		}
	}
	if got != maxStreams/4 {
		t.Errorf("one client has %d streams of %d", got, maxStreams)
	}
	if code, _ := open("192.0.2.2"); code != http.StatusOK {
		t.Errorf("another gets %d", code)
	}
}
