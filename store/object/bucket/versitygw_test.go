package bucket

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/versitygw"
)

// real opens a bucket on a real server.
func real(t *testing.T, o Options) *Bucket {
	t.Helper()
	if o.Keys == nil {
		o.Keys = &Keys{ID: versitygw.Access, Secret: versitygw.Secret}
	}
	if o.URL == "" {
		o.URL = "s3://bucket/some/prefix"
	}
	o.Silence = time.Minute // a busy machine
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func readAll(t *testing.T, b *Bucket, name string, from, n int64) ([]byte, error) {
	t.Helper()
	body, err := b.Get(t.Context(), name, from, n)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	return io.ReadAll(body)
}

// What the tests above say of a server in memory holds on one that people run.
func TestRealServer(t *testing.T) {
	server := versitygw.Start(t, "bucket")
	b := real(t, Options{Endpoint: server.Endpoint})
	data := make([]byte, 3<<20+5)
	random := seed.Random(t, 1)
	for i := range data {
		data[i] = byte(random.Uint32())
	}
	put := func(name string, data []byte, c Condition) (Meta, error) {
		return b.Put(t.Context(), name, bytes.NewReader(data), int64(len(data)), c)
	}
	if err := b.Try(t.Context(), "probe/me"); err != nil || !b.Conditional() {
		t.Fatalf("conditional: %v, %v", b.Conditional(), err)
	}

	first, err := put("d/a", data, Condition{Absent: true})
	if err != nil || first.ETag == "" || first.Now.IsZero() {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, r := range [][2]int64{{0, 0}, {0, 1}, {4096, 1 << 20}, {3 << 20, 0}, {3 << 20, 1 << 20}} {
		end := int64(len(data))
		if r[1] > 0 {
			end = min(end, r[0]+r[1])
		}
		if got, err := readAll(t, b, "d/a", r[0], r[1]); err != nil || !bytes.Equal(got, data[r[0]:end]) {
			t.Errorf("%v: %d bytes, %v", r, len(got), err)
		}
	}
	_, err = readAll(t, b, "d/a", int64(len(data)), 1)
	want(t, err, ErrRange)
	_, err = readAll(t, b, "d/none", 0, 0)
	want(t, err, ErrMissing)
	// Other bytes: the server refuses before it has read all of them, so that the answer may be lost
	// with the connection, and the same bytes would be found there as if this Put had written them.
	_, err = put("d/a", data[1:], Condition{Absent: true})
	want(t, err, ErrCondition)
	_, err = put("d/a", data[1:], Condition{ETag: "00000000000000000000000000000000"})
	want(t, err, ErrCondition)
	_, err = put("d/none", data, Condition{ETag: first.ETag})
	want(t, err, ErrCondition)
	if _, err = put("d/a", data[1:], Condition{ETag: first.ETag}); err != nil {
		t.Error(err)
	}

	var names []string
	for i := range 1005 {
		names = append(names, fmt.Sprintf("in/%04d", i))
	}
	var writers sync.WaitGroup
	for some := range slices.Chunk(names, 300) {
		writers.Go(func() {
			for _, name := range some {
				if _, err := put(name, []byte("1"), Condition{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	list, err := b.List(t.Context(), "in/", "", 5000)
	var got []string
	for _, m := range list {
		got = append(got, m.Name)
	}
	if err != nil || !slices.Equal(got, names) || list[0].Bytes != 1 || list[0].Modified.IsZero() {
		t.Errorf("%d names, %v", len(got), err)
	}
	if list, err = b.List(t.Context(), "in/", names[2], 3); err != nil || len(list) != 3 || list[0].Name != names[3] {
		t.Errorf("%+v, %v", list, err)
	}
	if err := b.Delete(t.Context(), append(names, "in/none")); err != nil {
		t.Error(err)
	}
	if list, err = b.List(t.Context(), "", "", 10); err != nil || len(list) != 1 || list[0].Name != "d/a" {
		t.Errorf("%+v, %v", list, err)
	}
	if err := b.Delete(t.Context(), []string{"d/none"}); err != nil {
		t.Error(err)
	}
}

// Of racing writers one wins.
func TestRealServerRacingWriters(t *testing.T) {
	b := real(t, Options{Endpoint: versitygw.Start(t, "bucket").Endpoint})
	if err := b.Try(t.Context(), "probe"); err != nil {
		t.Fatal(err)
	}
	var won atomic.Int64
	var writers sync.WaitGroup
	for i := range 16 {
		writers.Go(func() {
			text := fmt.Sprint("writer ", i)
			_, err := b.Put(t.Context(), "lease", strings.NewReader(text), int64(len(text)), Condition{Absent: true})
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, ErrCondition):
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if won.Load() != 1 {
		t.Errorf("%d writers won", won.Load())
	}
}

// Causes are those that a real server gives.
func TestRealServerCauses(t *testing.T) {
	server := versitygw.Start(t, "bucket")
	for name, c := range map[string]struct {
		o     Options
		cause error
	}{
		"no bucket":    {Options{URL: "s3://nothing/a"}, ErrNoBucket},
		"unknown key":  {Options{Keys: &Keys{ID: "nobody", Secret: "hunter2hunter2"}}, ErrDenied},
		"wrong secret": {Options{Keys: &Keys{ID: versitygw.Access, Secret: "hunter2hunter2"}}, ErrDenied},
		"nobody there": {Options{Endpoint: "http://127.0.0.1:1", Attempts: 1}, ErrUnavailable},
	} {
		if c.o.Endpoint == "" {
			c.o.Endpoint = server.Endpoint
		}
		c.o.Region = "us-east-1"
		b := real(t, c.o)
		_, err := b.Put(t.Context(), "a", strings.NewReader("1"), 1, Condition{})
		if !errors.Is(err, c.cause) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), versitygw.Secret) {
			t.Errorf("%s: put: %v", name, err)
		}
		if _, err = readAll(t, b, "a", 0, 0); !errors.Is(err, c.cause) {
			t.Errorf("%s: get: %v", name, err)
		}
		if _, err = b.List(t.Context(), "", "", 1); !errors.Is(err, c.cause) {
			t.Errorf("%s: list: %v", name, err)
		}
	}
	// In a bubble it is the year 2000, and signatures are of then.
	synctest.Test(t, func(t *testing.T) {
		b := real(t, Options{Endpoint: server.Endpoint, Region: "us-east-1"})
		_, err := readAll(t, b, "a", 0, 0)
		want(t, err, ErrClock)
		if b.Skew() < 20*365*24*time.Hour || !strings.Contains(err.Error(), "ahead of this node's") {
			t.Errorf("%v: %v", b.Skew(), err)
		}
		b.Close()
	})
}

// Faults of the network between.
func TestRealServerBehindAProxy(t *testing.T) {
	server := versitygw.Start(t, "bucket")
	to, err := url.Parse(server.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := s3proxy.New(s3proxy.To(to))
	front := httptest.NewServer(proxy)
	defer front.Close()
	b := real(t, Options{Endpoint: front.URL, Region: "us-east-1", Stall: 500 * time.Millisecond})
	if err := b.Try(t.Context(), "probe"); err != nil || !b.Conditional() {
		t.Fatalf("conditional: %v, %v", b.Conditional(), err)
	}
	data := bytes.Repeat([]byte("0123456789"), 200_000)
	proxy.Play(
		s3proxy.Clause{On: s3proxy.Put, For: 1, Do: s3proxy.Effect{Reset: true}},
		s3proxy.Clause{On: s3proxy.Put, After: 1, For: 1, Do: s3proxy.Effect{Lost: true}},
		s3proxy.Clause{On: s3proxy.Get, For: 1, Do: s3proxy.Effect{Delay: time.Hour}},
	)
	if _, err := b.Put(t.Context(), "a", bytes.NewReader(data), int64(len(data)), Condition{Absent: true}); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(t, b, "a", 0, 0); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Cut: 1000}})
	got, err := readAll(t, b, "a", 0, 0)
	want(t, err, ErrDamaged)
	if len(got) != 1000 {
		t.Errorf("%d bytes", len(got))
	}
	proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Whole: true}})
	if _, err = readAll(t, b, "a", 10, 10); err == nil {
		t.Error("the whole object, or a signature of another request, was taken for a range")
	}
	proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Stall: time.Hour}})
	_, err = readAll(t, b, "a", 0, 0)
	want(t, err, ErrUnavailable)
}
