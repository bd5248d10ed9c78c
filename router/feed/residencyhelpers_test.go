package feed

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/store/residency"
)

// part writes a part of a stream.
type part func(*residency.Writer) error

func hello(epoch uint64, resumed bool) part {
	return func(w *residency.Writer) error { return w.Hello(residency.Hello{Epoch: epoch, Resumed: resumed}) }
}

func streamManifest(blockSize int) *connector.Manifest {
	return &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "bfloat16", BlockSize: blockSize, TensorParallel: 2, PipelineParallel: 1,
		Groups: []connector.Group{
			{Layers: 2, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"},
			{Layers: 2, Window: 8, KVHeads: 1, HeadSize: 16, Layout: "LBHNC"},
		},
		KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// namespace describes a namespace of this block size as the given number.
func namespace(number uint32, blockSize int) part {
	m := streamManifest(blockSize)
	return func(w *residency.Writer) error {
		return w.Namespace(residency.Namespace{Number: number, Digest: m.Digest(), Manifest: m.Canonical()})
	}
}

// records are those of a snapshot if first is 0, else events from number first on.
func records(first uint64, groups ...[]residency.Record) part {
	return func(w *residency.Writer) (err error) {
		seq := first
		for _, list := range groups {
			for _, r := range list {
				err = errors.Join(err, w.Record(seq, r))
				if first > 0 {
					seq++
				}
			}
		}
		return err
	}
}

func snapshotEnd(seq uint64) part {
	return func(w *residency.Writer) error { return w.SnapshotEnd(seq) }
}

func heartbeat(seq uint64) part {
	return func(w *residency.Writer) error { return w.Heartbeat(seq) }
}

// block is one block of namespace 0: its records of both shards that a prefix needs.
func block(removed bool, key, parent connector.Key) (list []residency.Record) {
	for _, shard := range []connector.Shard{0, 2} { // of full attention
		list = append(list, residency.Record{Removed: removed, Shard: shard, Key: key, Parent: parent})
	}
	return list
}

// chain are the blocks of a prompt, by their numbers.
func chain(removed bool, blocks ...uint64) (list [][]residency.Record) {
	parent := connector.RootKey(testBlockSize, connector.Scope{})
	for _, k := range keysOf(connector.Scope{}, blocks...) {
		list = append(list, block(removed, k, parent))
		parent = k
	}
	return list
}

func stream(t testing.TB, parts ...part) []byte {
	t.Helper()
	var b bytes.Buffer
	w := residency.NewWriter(&b)
	for _, p := range parts {
		if err := p(w); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func residencyOptions() ResidencyOptions {
	return ResidencyOptions{
		URL: "http://store/v1/residency", Tier: residency.Disk, BlockSize: blocksize.Of(testBlockSize), Logger: slog.New(slog.DiscardHandler),
		Holder: func(connector.NamespaceDigest, *connector.Manifest) (Holder, bool) { return 1, true },
	}
}

func newResidency(t testing.TB, o ResidencyOptions) (*Residency, *memIndex) {
	t.Helper()
	x := newMemIndex()
	x.keyed = true
	f, err := NewResidency(o, x)
	if err != nil {
		t.Fatal(err)
	}
	return f, x
}

// told is a feed that a stream is applied to part by part, without a connection.
type told struct {
	t    *testing.T
	f    *Residency
	pipe bytes.Buffer
	w    *residency.Writer
	r    *residency.Reader
}

// tell begins a stream of an empty store.
func tell(t *testing.T, f *Residency, parts ...part) *told {
	t.Helper()
	s := &told{t: t, f: f}
	s.w, s.r = residency.NewWriter(&s.pipe), residency.NewReader(&s.pipe, residency.Position{})
	s.tell(parts...)
	return s
}

// tell applies parts of the stream.
func (s *told) tell(parts ...part) {
	s.t.Helper()
	if err := s.apply(parts...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *told) apply(parts ...part) error {
	for _, p := range append(parts, (*residency.Writer).Flush) {
		if err := p(s.w); err != nil {
			return err
		}
	}
	for {
		frame, err := s.r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = s.f.apply(frame, s.r.Position())
		}
		if err != nil {
			return err
		}
	}
}

// scriptedStore answers requests with the streams of a script, one each. The last one stays open until its
// connection is cut; later requests fail.
type scriptedStore struct {
	mu      sync.Mutex
	streams [][]byte
	queries []string
	cut     []func()
	// contentType is that of its answers.
	contentType string
}

// RoundTrip implements [http.RoundTripper].
func (s *scriptedStore) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, r.URL.RawQuery)
	if len(s.streams) == 0 {
		return nil, errors.New("connection refused")
	}
	var body io.Reader = bytes.NewReader(s.streams[0])
	if s.streams = s.streams[1:]; len(s.streams) == 0 {
		open, end := io.Pipe()
		body = io.MultiReader(body, open)
		cut := func() { _ = end.CloseWithError(io.ErrUnexpectedEOF) }
		s.cut = append(s.cut, cut)
		go func() {
			<-r.Context().Done()
			cut()
		}()
	}
	header := http.Header{"Content-Type": {s.contentType}}
	return &http.Response{StatusCode: http.StatusOK, Header: header, Body: io.NopCloser(body), Request: r}, nil
}

// requests is how often it was asked.
func (s *scriptedStore) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.queries)
}

// end cuts the open connections.
func (s *scriptedStore) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cut := range s.cut {
		cut()
	}
}

// follow follows the streams of a script; call it in a bubble of package synctest.
func followStore(t *testing.T, o ResidencyOptions, streams ...[]byte) (*Residency, *memIndex, *scriptedStore) {
	t.Helper()
	s := &scriptedStore{streams: streams, contentType: residency.ContentType(o.Tier)}
	o.Client = &http.Client{Transport: s}
	f, x := newResidency(t, o)
	background(t, f.Run)
	synctest.Wait()
	return f, x, s
}

// soon passes the time that a few attempts to connect take.
func soon() {
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// answer is a store whose answer is an error.
type answer string

// RoundTrip implements [http.RoundTripper].
func (a answer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusServiceUnavailable, Status: "503 Service Unavailable",
		Body: io.NopCloser(strings.NewReader(string(a))), Request: r,
	}, nil
}
