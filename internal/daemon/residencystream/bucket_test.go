package residencystream

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/residency"
)

// switchedTier is an object tier that can be told to offer nothing.
type switchedTier struct {
	*object.Tier
	off atomic.Bool
}

func (s *switchedTier) Offers() bool { return !s.off.Load() && s.Tier.Offers() }

// bucketTier opens a tier on the proxy's bucket, and waits until it has read the bucket's lists.
func bucketTier(t *testing.T, p *s3proxy.Proxy) *switchedTier {
	t.Helper()
	tier, err := object.Open(object.Options{
		Bucket: bucket.Options{
			URL: "s3://bucket/a", Endpoint: "http://s3.test:9000", Region: "here", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
			Transport: s3proxy.Direct(p), Logger: slog.New(slog.DiscardHandler),
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tier.Close() })
	if err := tier.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &switchedTier{Tier: tier}
}

// bucketHandler serves the streams of whatever tier it holds at the time.
type bucketHandler struct{ now atomic.Pointer[http.Handler] }

func (h *bucketHandler) serve(t *testing.T, tier BucketSource) {
	handler := New(t.Context(), nil, tier, nil)
	h.now.Store(&handler)
}

func (h *bucketHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	(*h.now.Load()).ServeHTTP(w, r)
}

// bucketRig is a bucket with a tier, a namespace, and the address of the tier's streams.
type bucketRig struct {
	proxy   *s3proxy.Proxy
	tier    *switchedTier
	ns      connector.NamespaceDigest
	handler *bucketHandler
	server  *httptest.Server
}

func newBucketRig(t *testing.T) *bucketRig {
	t.Helper()
	r := &bucketRig{proxy: s3proxy.New(s3mem.New(s3mem.Options{}, "bucket")), handler: new(bucketHandler)}
	r.tier = bucketTier(t, r.proxy)
	var err error
	if r.ns, err = r.tier.OpenNamespace(storetest.SmallManifest()); err != nil {
		t.Fatal(err)
	}
	r.handler.serve(t, r.tier)
	r.server = httptest.NewServer(r.handler)
	t.Cleanup(r.server.Close)
	return r
}

// ask asks for a stream of the bucket, and returns the status and what the answer says besides a stream.
func (r *bucketRig) ask(t *testing.T, query string) (code int, header http.Header, text string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/residency?"+query, nil))
	return w.Code, w.Header(), w.Body.String()
}

// A router follows what comes into the bucket and what leaves it. While nothing is offered there is no stream; the
// next one resumes, and brings what happened meanwhile.
func TestARouterFollowsTheBucket(t *testing.T) {
	r := newBucketRig(t)
	save := func(prompt int) {
		t.Helper()
		storetest.SaveSmall(t, r.tier, r.ns, storetest.SmallChain(connector.Scope{}, prompt, 3), 0, 1)
	}
	save(1)
	f, blocks := follow(t, r.server.URL, residency.Object)
	wait.For(t, "a snapshot", func() bool { return f.Stats().State == feed.StateSynced && blocks() == 3 })
	save(2)
	wait.For(t, "what comes afterwards", func() bool { return blocks() == 6 })

	r.tier.off.Store(true)
	wait.For(t, "the stream ends", func() bool {
		st := f.Stats()
		return !st.Connected && strings.Contains(st.Error, "503")
	})
	if code, header, text := r.ask(t, "tier=object"); code != http.StatusServiceUnavailable || header.Get("Retry-After") == "" || !strings.Contains(text, "not offered") {
		t.Errorf("while nothing is offered: %d, %q", code, text)
	}
	save(3)
	if n := blocks(); n != 6 {
		t.Errorf("%d blocks count while nothing is offered, want those that were known", n)
	}
	r.tier.off.Store(false)
	wait.For(t, "the stream resumes", func() bool { return blocks() == 9 })
	if st := f.Stats(); st.Snapshots != 1 || st.Resumed == 0 || st.Gaps+st.Malformed != 0 || st.Tier != residency.Object {
		t.Errorf("%+v", st)
	}

	lost := storetest.SmallChain(connector.Scope{}, 2, 3)
	r.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "a/kv1/d/**", Do: s3proxy.Effect{Status: http.StatusNotFound, Code: "NoSuchKey"}})
	op := &store.ReadOp{Record: store.Record{ID: store.RecordID{Namespace: r.ns, Key: lost[1]}, Parent: lost[0]}, Payload: store.AlignedBuffer(storetest.SmallPayloadBytes)}
	r.tier.Read(t.Context(), []*store.ReadOp{op}, func(*store.ReadOp) {})
	if !errors.Is(op.Err, store.ErrGone) {
		t.Fatalf("read of a record whose object is missing: %v", op.Err)
	}
	wait.For(t, "the block that is lost leaves", func() bool { return blocks() == 8 })
}

// A daemon that has just started has another epoch, and knows the namespaces of other nodes by the bucket alone.
func TestARouterLearnsFromTheBucketWhatOthersStored(t *testing.T) {
	r := newBucketRig(t)
	storetest.SaveSmall(t, r.tier, r.ns, storetest.SmallChain(connector.Scope{}, 1, 3), 0, 1)
	f, blocks := follow(t, r.server.URL, residency.Object)
	wait.For(t, "a snapshot", func() bool { return blocks() == 3 })
	first := f.Stats()
	if err := r.tier.Close(); err != nil {
		t.Fatal(err)
	}

	next := bucketTier(t, r.proxy)
	// The last list may not have been merged before the first tier closed.
	wait.For(t, "what is in the bucket", func() bool {
		return storetest.Has(next, store.RecordID{Namespace: r.ns, Key: storetest.SmallChain(connector.Scope{}, 1, 1)[1]})
	})
	// A namespace that cannot be read for a while costs the stream, and is not taken for one that is lost.
	r.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "a/kv1/ns/**", Do: s3proxy.Effect{Status: http.StatusForbidden, Code: "AccessDenied"}})
	r.handler.serve(t, next)
	wait.For(t, "a stream that cannot describe a namespace", func() bool { return strings.Contains(f.Stats().Error, "describe a namespace") })
	r.proxy.Stop()
	wait.For(t, "the next snapshot", func() bool { st := f.Stats(); return st.State == feed.StateSynced && blocks() == 3 })
	if st := f.Stats(); st.Epoch == first.Epoch || st.Snapshots != first.Snapshots+1 || st.IgnoredNamespaces != 0 || st.Resumed != 0 {
		t.Errorf("%+v, before %+v", st, first)
	}

	// Once it was read, the bucket is not asked again.
	r.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Name: "a/kv1/ns/**", Do: s3proxy.Effect{Delay: time.Hour}})
	_, again := follow(t, r.server.URL, residency.Object)
	wait.For(t, "another router", func() bool { return again() == 3 })
}

// A router is told what is wrong with a request that can never be served.
func TestResidencyOfATierThatIsNotThereIsRefused(t *testing.T) {
	s, _ := storetest.Small(t, 12<<20)
	h := New(t.Context(), s, nil, nil)
	for tier, want := range map[string]struct {
		status int
		code   string
	}{
		"object": {http.StatusNotFound, "no_bucket"},
		"host":   {http.StatusBadRequest, "unknown_tier"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/residency?tier="+tier, nil))
		var got Refusal
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != want.status || got.Error.Code != want.code || got.Error.Message == "" {
			t.Errorf("%s: status %d, %q: %v", tier, w.Code, w.Body, err)
		}
	}
}
