package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/versitygw"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
	"github.com/kvconn/kvconn/store/object/maintain"
)

const bucketURL = "s3://bucket/prefix"

// bucketTest is a bucket with a server, and what the commands are told of it.
type bucketTest struct {
	*testing.T
	endpoint, keyFile string
	client            *bucket.Bucket
}

// newBucketTest gives the commands the credentials of a server that checks them.
func newBucketTest(t *testing.T, endpoint, keyFile string) *bucketTest {
	t.Setenv("AWS_ACCESS_KEY_ID", versitygw.Access)
	t.Setenv("AWS_SECRET_ACCESS_KEY", versitygw.Secret)
	t.Setenv("AWS_REGION", "us-east-1")
	b := &bucketTest{T: t, endpoint: endpoint, keyFile: keyFile}
	var err error
	if b.client, err = bucket.Open(b.options()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.client.Close)
	return b
}

func (b *bucketTest) options() bucket.Options {
	return bucket.Options{URL: bucketURL, Endpoint: b.endpoint, Silence: time.Minute, Logger: slog.New(slog.DiscardHandler)}
}

// serve runs a node that writes records. The function that it returns stops the node.
func (b *bucketTest) serve(records int) (stop func()) {
	b.Helper()
	ring, err := settings.LoadKeys(b.keyFile)
	if err != nil {
		b.Fatal(err)
	}
	tier, err := object.Open(object.Options{
		Bucket: b.options(), Ring: ring, Node: "node-a", ListPause: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	ns, err := tier.OpenNamespace(manifests.Model("m"))
	if err != nil {
		b.Fatal(err)
	}
	b.until("the lease is not taken", func() bool { return len(b.list(format.LeaseFile)) > 0 })
	ops := make([]*store.WriteOp, records)
	for i := range ops {
		ops[i] = &store.WriteOp{
			Record:  store.Record{ID: store.RecordID{Namespace: ns, Key: connector.Key{byte(i), 1}}, Proof: connector.Proof{1}},
			Payload: store.AlignedBuffer(20_000),
		}
	}
	written := make(chan error, records)
	accepted := 0
	b.until("the bucket takes nothing", func() bool {
		accepted, _ = tier.Write(ops, func(op *store.WriteOp) { written <- op.Err })
		return accepted > 0
	})
	for range accepted {
		if err := <-written; err != nil {
			b.Fatal(err)
		}
	}
	return func() {
		if err := tier.Close(); err != nil {
			b.Error(err)
		}
	}
}

func (b *bucketTest) until(what string, is func() bool) {
	b.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal(what)
		}
	}
}

func (b *bucketTest) list(prefix string) (names []string) {
	b.Helper()
	all, err := b.client.List(b.Context(), prefix, "", 1000)
	if err != nil {
		b.Fatal(err)
	}
	for _, m := range all {
		names = append(names, m.Name)
	}
	return names
}

func (b *bucketTest) remove(names ...string) {
	b.Helper()
	if err := b.client.Delete(b.Context(), names); err != nil {
		b.Fatal(err)
	}
}

// run runs a command on the bucket, and decodes what it prints as JSON.
func (b *bucketTest) run(into any, args ...string) (status int, errs string) {
	b.Helper()
	args = append(args, "--object-endpoint", b.endpoint, "--json")
	if b.keyFile != "" {
		args = append(args, "--key-file", b.keyFile)
	}
	status, out, errs := kvconnd(args...)
	if out != "" {
		if err := json.Unmarshal([]byte(out), into); err != nil {
			b.Fatalf("%v: %v", args, err)
		}
	}
	return status, errs
}

func (b *bucketTest) fsck(wantStatus int, flags ...string) (r maintain.FsckReport) {
	b.Helper()
	if status, errs := b.run(&r, append([]string{"fsck", bucketURL, "--payload"}, flags...)...); status != wantStatus {
		b.Fatalf("fsck %v: status %d, %s: %+v", flags, status, errs, r)
	}
	return r
}

func (b *bucketTest) gc(flags ...string) (r maintain.GCReport) {
	b.Helper()
	if status, errs := b.run(&r, append([]string{"gc", "--object", bucketURL}, flags...)...); status != 0 {
		b.Fatalf("gc %v: status %d, %s", flags, status, errs)
	}
	return r
}

// collectAndCheck runs both commands beside a node and without one.
func collectAndCheck(b *bucketTest) {
	const records = 3
	stop := b.serve(records)
	if status, errs := b.run(nil, "gc", "--object", bucketURL); status != 1 || !strings.Contains(errs, "node node-a is the steward") {
		b.Errorf("gc beside a steward: status %d, %s", status, errs)
	}
	if r := b.fsck(0); !r.Clean() || r.Objects != 1 || r.Records != records {
		b.Errorf("fsck beside a steward: %+v", r)
	}
	stop()

	if r := b.gc(); r.Objects != 1 || r.RemovedCap+r.RemovedAge+r.Orphans != 0 {
		b.Errorf("gc below the cap: %+v", r)
	}
	if r := b.fsck(0, "--no-repair"); !r.Clean() || r.Present != 1 {
		b.Errorf("fsck of what is intact: %+v", r)
	}
	b.remove(b.list(format.DataPrefix)...)
	before := len(b.list(format.Root))
	if r := b.fsck(1, "--no-repair"); r.Problems["missing"] != 1 || len(r.Repaired) != 0 || len(b.list(format.Root)) != before {
		b.Errorf("fsck without repairs: %+v", r)
	}
	if r := b.fsck(0); r.Problems["missing"] != 1 || len(r.Repaired) != 1 || r.Steward != "" {
		b.Errorf("fsck of what is missing: %+v", r)
	}
	if r := b.fsck(0); !r.Clean() {
		b.Errorf("fsck after the repair: %+v", r)
	}
	if left := b.list(format.LeaseFile); len(left) != 0 {
		b.Errorf("the lease is left: %v", left)
	}
}

func TestBucketCommands(t *testing.T) {
	server := httptest.NewServer(s3mem.New(s3mem.Options{}, "bucket"))
	t.Cleanup(server.Close)
	collectAndCheck(newBucketTest(t, server.URL, ""))
}

func TestBucketCommandsOnARealServer(t *testing.T) {
	server := versitygw.Start(t, "bucket")
	keyFile := filepath.Join(t.TempDir(), "keys")
	if status, _, errs := kvconnd("key", "new", keyFile); status != 0 {
		t.Fatal(errs)
	}
	b := newBucketTest(t, server.Endpoint, keyFile)
	collectAndCheck(b)
	b.keyFile = ""
	if status, errs := b.run(nil, "fsck", bucketURL); status != 1 || !strings.Contains(errs, "give the key file") {
		t.Errorf("without the key: status %d, %s", status, errs)
	}
}

// What is beyond the cap is removed, and deleted by a later run; what is in no list is offered again.
func TestBucketCommandsLater(t *testing.T) {
	var ahead atomic.Int64
	server := httptest.NewServer(s3mem.New(s3mem.Options{Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }}, "bucket"))
	t.Cleanup(server.Close)
	b := newBucketTest(t, server.URL, "")
	b.serve(1)()
	b.remove(append(b.list(format.InPrefix), b.list(format.LogPrefix)...)...)
	ahead.Store(int64(2 * time.Hour))
	if r := b.fsck(0); r.Problems["orphan"] != 1 || len(r.Repaired) != 1 {
		t.Errorf("fsck of an orphan: %+v", r)
	}
	if _, err := b.client.Put(t.Context(), format.HeadFile, bytes.NewReader([]byte("no head")), 7, bucket.Condition{}); err != nil {
		t.Fatal(err)
	}
	if r := b.fsck(0); r.Problems["damaged"] != 1 || len(r.Repaired) != 1 {
		t.Errorf("fsck of a head: %+v", r)
	}
	if r := b.fsck(0); !r.Clean() || r.Present != 1 {
		t.Errorf("fsck after the repairs: %+v", r)
	}
	// Ages are told while the clocks differ by 15 minutes at most.
	ahead.Store(-int64(10 * time.Minute))
	if r := b.gc("--object-max-bytes", "1KB"); r.RemovedCap != 1 || r.LeavingObjects != 1 || r.Objects != 0 || r.Deleted != 0 {
		t.Errorf("gc past the cap: %+v", r)
	}
	ahead.Store(0)
	if r := b.gc(); r.Deleted != 0 || len(b.list(format.DataPrefix)) != 1 {
		t.Errorf("gc within the grace: %+v", r)
	}
	ahead.Store(int64(10 * time.Minute))
	if r := b.gc(); r.Deleted != 1 || r.LeavingObjects != 0 || len(b.list(format.DataPrefix)) != 0 {
		t.Errorf("gc after the grace: %+v", r)
	}
	ahead.Store(int64(2 * time.Hour))
	if status, errs := b.run(nil, "gc", "--object", bucketURL); status != 1 || !strings.Contains(errs, "clocks") {
		t.Errorf("gc with another clock: status %d, %s", status, errs)
	}
}

func TestBucketCommandsOfNoBucket(t *testing.T) {
	server := httptest.NewServer(s3mem.New(s3mem.Options{}, "bucket"))
	t.Cleanup(server.Close)
	b := newBucketTest(t, server.URL, "")
	for want, args := range map[string][]string{
		"holds no cache":    {"fsck", bucketURL},
		"it holds no cache": {"gc", "--object", bucketURL},
		"is not set":        {"gc"},
		"at least an hour":  {"gc", "--object", bucketURL, "--object-max-age", "1m"},
		"holds no store":    {"fsck", t.TempDir(), "--no-repair"},
		"make the bucket":   {"fsck", "s3://another/prefix"},
	} {
		if status, errs := b.run(nil, args...); status != 1 || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %s; want %q", args, status, errs, want)
		}
	}
	if left := b.list(""); len(left) != 0 {
		t.Errorf("the commands left %v", left)
	}
}
