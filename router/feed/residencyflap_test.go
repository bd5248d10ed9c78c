package feed

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/store/residency"
)

// A store whose first namespaces have another block size than most does not have its snapshot begin again without end.
func TestTheSizeOfMostNamespacesHolds(t *testing.T) {
	var streams atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		streams.Add(1)
		w.Header().Set("Content-Type", residency.ContentType(residency.Disk))
		rw := residency.NewWriter(w)
		_ = hello(7, false)(rw)
		for i, size := range []int{32, 64, 64} {
			m := streamManifest(size)
			m.TensorParallel = 1 + i // another one
			_ = rw.Namespace(residency.Namespace{Number: uint32(i), Digest: m.Digest(), Manifest: m.Canonical()})
		}
		_ = rw.SnapshotEnd(5)
		_ = rw.Flush()
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer srv.Close()
	var changes atomic.Int64
	o := residencyOptions()
	o.URL, o.Client = srv.URL, srv.Client()
	o.BlockSize = blocksize.New(func() { changes.Add(1) })
	o.Holder = func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true }
	f, _ := newResidency(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	wait.For(t, "the snapshot", func() bool { return f.Stats().State == StateSynced })
	if n, c, size := streams.Load(), changes.Load(), o.BlockSize.Tokens(); n > 3 || c > 3 || size != 64 {
		t.Errorf("%d streams, %d changes of the size, which is %d", n, c, size)
	}
	cancel()
	<-done
}
