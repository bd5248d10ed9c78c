package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// testBackend records what reaches it. The real one is package daemon's, tested in package
// integration against these same clients.
type testBackend struct {
	mu         sync.Mutex
	registered int
	calls      []string
	block      chan struct{} // if set, Match waits for it
	// release, if set, is what Save waits for before it answers. copying has Load count
	// itself into the fence page, as if in the middle of a copy; answering, if set, is what
	// it waits for then. Either says on waiting that it is about to wait.
	release, answering, waiting chan struct{}
	copying                     bool
	loadErr, registerErr        error
	silent                      bool // Poll reports nothing
	later                       bool // saves with an id are reported by Poll
	openErr                     error
	closed                      int
	pages                       []*fence.Page
	peers                       []server.Peer
}

func (b *testBackend) OpenScheduler(_ context.Context, p server.Peer, _ *connector.Manifest) (server.Scheduler, error) {
	return b.open(p), b.openErr
}

func (b *testBackend) OpenWorker(_ context.Context, p server.Peer, _ *connector.Manifest, _ int) (server.Worker, error) {
	return b.open(p), nil
}

func (b *testBackend) open(p server.Peer) *testSession {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.peers = append(b.peers, p)
	return &testSession{b: b}
}

func (b *testBackend) note(call string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, call)
}

func (b *testBackend) called(call string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains(b.calls, call)
}

func (b *testBackend) registrations() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registered
}

// endCopies has all copies that Load began end.
func (b *testBackend) endCopies() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.pages {
		p.End()
	}
	b.pages = nil
}

type testSession struct {
	b    *testBackend
	page *fence.Page
}

func (s *testSession) Match(_ context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	if m.From > 0 {
		return connector.Offer{}, connector.ErrUnknownRequest
	}
	if s.b.block != nil {
		<-s.b.block
	}
	return connector.Offer{Tokens: len(m.Tokens), Async: true}, nil
}

func (s *testSession) Step(_ context.Context, m *connector.StepRequest) (connector.StepReply, error) {
	return connector.StepReply{Metadata: []byte("plan"), Loads: []connector.PlannedLoad{{Request: m.Finished[0]}}}, nil
}

func (s *testSession) Loaded(context.Context, *connector.LoadedReport) error { return nil }

func (s *testSession) Reset(context.Context) error { s.b.note("reset"); return nil }

func (s *testSession) Register(_ context.Context, r *server.Registration) (server.Registered, error) {
	for _, f := range r.Regions {
		_ = f.Close()
	}
	page, err := fence.Open(r.Fence)
	_ = r.Fence.Close()
	s.page = page
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.registered++
	if s.b.registerErr != nil {
		return server.Registered{}, s.b.registerErr
	}
	return server.Registered{BlockBytes: []int{r.Layout.Groups[0].BlockBytes()}}, err
}

func (s *testSession) Unregister(context.Context) error { s.b.note("unregister"); return nil }

func (s *testSession) Load(context.Context, []byte) (int, error) {
	s.b.note("load")
	if s.b.copying && s.page.Begin() {
		s.b.mu.Lock()
		s.b.pages = append(s.b.pages, s.page)
		s.b.mu.Unlock()
	}
	if s.b.answering != nil {
		s.b.waiting <- struct{}{}
		<-s.b.answering
	}
	return 1, s.b.loadErr
}

func (s *testSession) Save(context.Context, []byte) (connector.SaveResult, error) {
	if s.b.release != nil {
		s.b.waiting <- struct{}{}
		<-s.b.release
	}
	return connector.SaveResult{Taken: 1, Present: 2}, nil
}

func (s *testSession) SaveLater(_ context.Context, m *connector.SaveRequest) (bool, error) {
	s.b.note(fmt.Sprintf("save %s after %d", m.ID, m.Revoked))
	return s.b.later, s.b.loadErr
}

func (s *testSession) Poll(context.Context) (connector.Polled, error) {
	if s.b.silent {
		return connector.Polled{}, nil
	}
	return connector.Polled{
		Finished: []connector.FinishedLoad{{Request: "load"}, {Request: "nobody waits for this"}},
		Stored:   []connector.StoredPut{{ID: "save", SaveResult: connector.SaveResult{Taken: 3}}, {ID: "load"}},
	}, nil
}

func (s *testSession) Cancel(_ context.Context, request string) error {
	s.b.note("cancel " + request)
	return nil
}

func (s *testSession) Present(_ context.Context, m *connector.PresentRequest, _ [][]byte) ([][]byte, error) {
	return [][]byte{{byte(1<<len(m.Hashes) - 1)}}, nil
}

func (s *testSession) Fetch(_ context.Context, m *connector.KeyedMove) error {
	s.b.note("fetch " + m.ID + " of " + m.Owner())
	return s.b.loadErr
}

func (s *testSession) FetchWait(context.Context, *connector.KeyedMove) (connector.FetchResult, error) {
	return connector.FetchResult{}, connector.ErrBadRequest
}

func (s *testSession) PutWait(context.Context, *connector.KeyedMove) (connector.PutResult, error) {
	return connector.PutResult{}, connector.ErrBadRequest
}

func (s *testSession) Put(_ context.Context, m *connector.KeyedMove) error {
	s.b.note("put " + m.ID)
	return s.b.loadErr
}

func (s *testSession) Touch(_ context.Context, m *connector.TouchRequest) error {
	s.b.note("touch " + m.Request)
	return nil
}

func (s *testSession) Close() {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.closed++
}

// daemon is one start of a server.
type daemon struct {
	t      *testing.T
	socket string
	b      *testBackend
	epoch  uint64
	server *server.Server
	stop   func()
}

func startDaemon(t *testing.T, socket string, b *testBackend) *daemon {
	t.Helper()
	d := &daemon{t: t, socket: socket, b: b, epoch: uint64(time.Now().UnixNano())}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := server.Listen(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	d.server = server.New(server.Options{Epoch: d.epoch, Version: "test", LoadTimeout: time.Minute, UID: os.Getuid()}, b)
	done := make(chan error, 1)
	go func() { done <- d.server.Serve(ctx, l) }()
	d.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(d.stop)
	return d
}

// testOptions have a deadline that only a broken daemon misses.
func testOptions(socket string) Options {
	return Options{
		Socket: socket, Engine: "engine", CallTimeout: 30 * time.Second, RetryInterval: time.Nanosecond,
		Manifest: *manifests.New(),
	}
}

func newScheduler(t *testing.T, o Options) *Scheduler {
	t.Helper()
	s, err := NewScheduler(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func testLayout() connector.Layout {
	return connector.Layout{Groups: []connector.GroupLayout{{Blocks: 16, Runs: []connector.Run{{Layers: 1, BlockStride: 4096, Bytes: 4096}}}}}
}

func newWorker(t *testing.T, o Options) *Worker {
	t.Helper()
	f := memfd.New(t, 1<<16)
	layout := testLayout()
	w, err := NewWorker(o, 0, layout, []*os.File{f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// socketPath is where a test's daemon listens.
func socketPath(t *testing.T) string { return filepath.Join(t.TempDir(), "s") }
