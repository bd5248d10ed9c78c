package daemon

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/upload"
)

// hangingBucket is an S3 server that may stop to answer requests for data objects.
type hangingBucket struct {
	*httptest.Server
	hangs atomic.Bool
}

func newHangingBucket(t *testing.T) *hangingBucket {
	t.Helper()
	memory := s3mem.New(s3mem.Options{}, "bucket")
	b := new(hangingBucket)
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.hangs.Load() && strings.Contains(r.URL.Path, "/kv1/d/") {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client leaves
			<-r.Context().Done()
			return
		}
		memory.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		b.CloseClientConnections()
		b.Close()
	})
	return b
}

func (b *hangingBucket) options() *ObjectOptions {
	return &ObjectOptions{
		Tier: object.Options{Bucket: bucket.Options{
			URL: "s3://bucket/a", Endpoint: b.URL, Region: "us-east-1", Keys: &bucket.Keys{ID: "id", Secret: "secret"},
		}},
		Upload: upload.Options{Age: 100 * time.Millisecond},
	}
}

// What is on disk when a daemon starts is uploaded. A bucket that hangs delays neither the start nor the stop, and is
// no reason for either to fail.
func TestBucketThatHangsIsNoReasonForAStopToFail(t *testing.T) {
	b := newHangingBucket(t)
	b.hangs.Store(true)
	r := start(t, func(o *Options) {
		saveBefore(t, o.Dir)
		o.Object, o.StopTimeout = b.options(), 5*time.Second
	})
	wait.For(t, "an upload hangs", func() bool {
		s, err := FetchStatus(t.Context(), r.HTTP)
		return err == nil && s.Object != nil && s.Object.Upload.Uploading > 0 && s.Object.WritingRecords > 0
	})
	r.stop()
	err := <-r.done
	r.done <- err // for the end of the test
	if err != nil {
		t.Fatal(err)
	}

	b.hangs.Store(false)
	dir := r.dir
	again := start(t, func(o *Options) { o.Dir, o.Object = dir, b.options() })
	wait.For(t, "the next start uploads it", func() bool {
		s, err := FetchStatus(t.Context(), again.HTTP)
		return err == nil && s.Store.Records > 0 && s.Object.Records == s.Store.Records
	})
}

// saveBefore makes a store with some records.
func saveBefore(t *testing.T, dir string) {
	t.Helper()
	s, err := disk.Open(t.Context(), disk.Options{Dir: dir, MaxBytes: 64 << 20, MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	m := residencyManifest()
	ns, err := s.OpenNamespace(m)
	if err != nil {
		t.Fatal(err)
	}
	records, _ := promptRecords(m, 5)
	storetest.Save(t, s, records...)
	s.CloseNamespace(ns)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
