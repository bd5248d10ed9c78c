package route

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/residency"
)

// A node's speed is what its kvconnd says, for all its ranks, until it says otherwise.
func TestTheDiskSpeedIsTheNodes(t *testing.T) {
	var speed atomic.Int64
	speed.Store(3e9)
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("%s is asked for without the token", r.URL)
		}
		switch v := speed.Load(); {
		case r.URL.Path != "/v1/status":
			http.Error(w, "no stream", http.StatusServiceUnavailable)
		case v < 0:
			fmt.Fprint(w, "{")
		default:
			fmt.Fprintf(w, `{"tiers":[{"tier":"host","load_bytes_per_s":9},{"tier":"disk","load_bytes_per_s":%d}],"more":1}`, v)
		}
	}))
	defer node.Close()
	r := newRouter(t, 0, func(o *Options) { o.NodeInterval, o.NodeToken = time.Millisecond, "secret" })
	a, b, given := rank(0), rank(1), rank(2)
	a.Node, a.NodeURL, b.Node, given.Node = "n", node.URL, "n", "n"
	given.Speeds.DiskBytes = 1
	add(t, r, a, b, given)
	is := func(want float64) func() bool {
		return func() bool {
			x, _ := r.Rank(0)
			y, _ := r.Rank(1)
			z, _ := r.Rank(2)
			return x.Speed.DiskBytes == want && y.Speed.DiskBytes == want && z.Speed.DiskBytes == 1
		}
	}
	wait.For(t, "the first speed", is(3e9))
	speed.Store(-1)
	speed.Store(2e9)
	wait.For(t, "the second speed", is(2e9))
	if n := len(r.Stats().Stores); n != 1 {
		t.Errorf("%d feeds for one node", n)
	}
	for i := range int32(3) {
		if _, err := r.Remove(i); err != nil {
			t.Error(err)
		}
	}
	if n := len(r.Stats().Stores); n != 0 {
		t.Errorf("%d feeds are left", n)
	}
}

// A bucket's blocks and speed are asked of the kvconnd that bucket_url names, for all ranks of the bucket.
func TestTheBucketsStreamAndSpeedAreThoseOfItsTier(t *testing.T) {
	var asked atomic.Value
	asked.Store("")
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/status" {
			fmt.Fprint(w, `{"tiers":[{"tier":"disk","load_bytes_per_s":3e9},{"tier":"object","load_bytes_per_s":2e8,"load_latency_s":0.03}]}`)
			return
		}
		asked.Store(r.URL.String())
		http.Error(w, "no stream", http.StatusServiceUnavailable)
	}))
	defer node.Close()
	r := newRouter(t, 0, func(o *Options) { o.NodeInterval = time.Millisecond })
	a, b := rank(0), rank(1)
	a.Bucket, a.BucketURL, b.Bucket = "b", node.URL, "b"
	add(t, r, a, b)
	wait.For(t, "the speed and a request for the stream", func() bool {
		x, _ := r.Rank(0)
		y, _ := r.Rank(1)
		return x.Speed.ObjectBytes == 2e8 && y.Speed.ObjectBytes == 2e8 && x.Speed.DiskBytes == 0 && x.Speed.ObjectDelay == 0.03 && asked.Load() == "/v1/residency?tier=object"
	})
	if s := r.Stats().Stores; len(s) != 1 || s[0].Tier != "object" {
		t.Errorf("feeds %+v, want one of the bucket for both ranks", s)
	}
}

// Namespaces of a model that its ranks cannot tell apart: who gave none is told.
func TestSeveralNamespacesOfAModelAreSaid(t *testing.T) {
	node := httptest.NewServer(http.NotFoundHandler())
	defer node.Close()
	var text strings.Builder
	r := newRouter(t, 0, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	a := rank(0)
	a.Node, a.NodeURL = "n", node.URL
	add(t, r, a)
	from := r.ranks[0].disk
	m := &connector.Manifest{Model: "m", BlockSize: 16, KeyScheme: connector.KeySchemeTokens}
	for i := range 3 {
		if _, ok := r.holderOf(from, connector.NamespaceDigest{byte(i % 2)}, m); !ok {
			t.Errorf("namespace %d is not followed", i)
		}
	}
	r.Close() // nobody else writes to text from now on
	if n := strings.Count(text.String(), "several namespaces"); n != 1 {
		t.Errorf("said %d times: %s", n, &text)
	}
}

func TestBytesPerTokenAreThoseOfThePrefix(t *testing.T) {
	groups := []connector.Group{{Layers: 10, KVHeads: 4, HeadSize: 256}, {Layers: 10, KVHeads: 4, HeadSize: 256, Window: 1024}}
	for _, c := range []struct {
		m    connector.Manifest
		want float64
	}{
		{connector.Manifest{KVDType: "bfloat16", TensorParallel: 2, Groups: groups}, 10 * 4 * 256 * 2 * 2},
		{connector.Manifest{KVDType: "fp8_e4m3", TensorParallel: 1, Groups: groups[:1]}, 10 * 4 * 256},
		{connector.Manifest{KVDType: "float32", TensorParallel: 8, Groups: []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 576, Replicated: true}}}, 2 * 576 * 4},
		{connector.Manifest{KVDType: "unheard-of", TensorParallel: 1, Groups: groups}, 0},
	} {
		if got := bytesPerToken(&c.m); got != c.want {
			t.Errorf("%+v: %v, want %v", c.m, got, c.want)
		}
	}
	if bytesPerToken(nil) != 0 {
		t.Error("a manifest that is not there has bytes")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, spoil := range []func(*Options){
		func(o *Options) { o.PredictTTL = -1 }, func(o *Options) { o.MaxPromptTokens = 1 << 30 }, func(o *Options) { o.MaxRanks = -1 },
		func(o *Options) { o.Index.MaxBlocks = -1 }, func(o *Options) { o.Load.TTL = -1 },
	} {
		var o Options
		spoil(&o)
		if r, err := New(o); err == nil {
			r.Close()
			t.Errorf("%+v was accepted", o)
		}
	}
}

// A node may serve models of several block sizes: those of others are nothing that this one's ranks could load.
func TestAnotherModelsBlockSizeIsNoMismatch(t *testing.T) {
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/residency" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", residency.ContentType(residency.Disk))
		out := residency.NewWriter(w)
		if err := out.Hello(residency.Hello{Epoch: 1}); err != nil {
			t.Error(err)
		}
		for number, model := range []string{"another", "m"} {
			m := &connector.Manifest{
				Engine: "test/1", Model: model, KVDType: "bfloat16", BlockSize: 48, TensorParallel: 1, PipelineParallel: 1,
				Groups: []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"}}, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
			}
			if err := out.Namespace(residency.Namespace{Number: uint32(number), Digest: m.Digest(), Manifest: m.Canonical()}); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(out.Flush(), http.NewResponseController(w).Flush()); err != nil {
			t.Error(err)
		}
		<-r.Context().Done()
	}))
	t.Cleanup(node.Close)
	r := newRouter(t, 0, nil)
	a := rank(0)
	a.Node, a.NodeURL, a.BlockSize = "n", node.URL, 16
	if err := r.Add(a); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the namespaces", func() bool { return r.Stats().Stores[0].IgnoredNamespaces == 2 })
	if s := r.Stats().Stores[0]; s.MismatchedBlockSize != 1 {
		t.Errorf("%+v: want that of the rank's model alone", s)
	}
}
