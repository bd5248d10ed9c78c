package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/connector/wire"
)

// testBackend records what reaches it. The real one is package daemon's, tested in package
// integration against these same clients.
type testBackend struct {
	mu         sync.Mutex
	registered int
	block      chan struct{} // if set, Match waits for it
	// If release is set, Save says so on saving and waits.
	saving, release chan struct{}
	openErr         error
	closed          int
}

func (b *testBackend) OpenScheduler(context.Context, server.Peer, *connector.Manifest) (server.Scheduler, error) {
	return &testSession{b}, b.openErr
}

func (b *testBackend) OpenWorker(context.Context, server.Peer, *connector.Manifest, connector.Shard) (server.Worker, error) {
	return &testSession{b}, nil
}

type testSession struct{ b *testBackend }

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

func (s *testSession) Register(_ context.Context, l *connector.Layout, files []*os.File) (int, error) {
	for _, f := range files {
		_ = f.Close()
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.registered++
	return l.BlockBytes(), nil
}

func (s *testSession) Load(context.Context, []byte) (int, error) { return 1, nil }

func (s *testSession) Save(context.Context, []byte) (connector.SaveResult, error) {
	if s.b.release != nil {
		s.b.saving <- struct{}{}
		<-s.b.release
	}
	return connector.SaveResult{Taken: 1}, nil
}

func (s *testSession) Poll(context.Context) ([]connector.FinishedLoad, error) {
	return []connector.FinishedLoad{{Request: "load"}, {Request: "nobody waits for this"}}, nil
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

func testOptions(socket string) Options {
	return Options{
		Socket: socket, Engine: "engine", RetryInterval: time.Nanosecond,
		Manifest: connector.Manifest{
			Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 1, KVHeads: 1, HeadSize: 8, Layout: "x"}},
			TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
		},
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

func newWorker(t *testing.T, o Options) *Worker {
	t.Helper()
	fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "kv")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(1 << 16); err != nil {
		t.Fatal(err)
	}
	layout := connector.Layout{Blocks: 16, Runs: []connector.Run{{Layers: 1, BlockStride: 4096, Bytes: 4096}}}
	w, err := NewWorker(o, 0, layout, []*os.File{f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func TestCallsReachTheSessionAndAnswersComeBack(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b := new(testBackend)
	startDaemon(t, socket, b)
	s, w := newScheduler(t, testOptions(socket)), newWorker(t, testOptions(socket))
	ctx := t.Context()
	if err := s.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	if got := s.Match(ctx, &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 100_000)}); got.Tokens != 100_000 || !got.Async {
		t.Errorf("Match = %+v", got)
	}
	reply := s.Step(ctx, &connector.StepRequest{Finished: []string{"load"}})
	if string(reply.Metadata) != "plan" || len(reply.Loads) != 1 {
		t.Errorf("Step = %+v", reply)
	}
	w.Load(ctx, reply.Metadata, reply.Loads)
	if got := w.Save(ctx, reply.Metadata); got.Taken != 1 {
		t.Errorf("Save = %+v", got)
	}
	if got := w.Poll(ctx); len(got) != 1 || got[0].Request != "load" {
		t.Errorf("Poll = %+v, want the one load that was started", got)
	}
	if got := w.Poll(ctx); len(got) != 0 {
		t.Errorf("second Poll = %+v, want each load once", got)
	}
}

func TestNoDaemonCostsHitsOnly(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s, w := newScheduler(t, testOptions(socket)), newWorker(t, testOptions(socket))
	ctx := t.Context()
	if got := s.Match(ctx, &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 0 {
		t.Errorf("Match = %+v, want no offer", got)
	}
	reply := s.Step(ctx, &connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: []uint32{5, 6, 7, 8}, Computed: 16, External: 32}}})
	if len(reply.Metadata) != 0 || len(reply.Loads) != 1 || fmt.Sprint(reply.Loads[0].Blocks) != "[6 7]" {
		t.Fatalf("Step = %+v, want the load of blocks 6 and 7 without metadata", reply)
	}
	w.Load(ctx, reply.Metadata, reply.Loads)
	if got := w.Poll(ctx); len(got) != 1 || fmt.Sprint(got[0].FailedBlocks) != "[6 7]" {
		t.Errorf("Poll = %+v, want the load reported as failed", got)
	}
	if err := s.Connect(ctx); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Connect = %v, want a missing socket", err)
	}
	// A daemon that comes later is found.
	startDaemon(t, socket, new(testBackend))
	if got := s.Match(ctx, &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 64 {
		t.Errorf("Match after the daemon came = %+v", got)
	}
}

func TestRefusedSocketIsAClearError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Connect = %v, want connection refused", err)
	}
	// The daemon replaces what a dead one left behind.
	startDaemon(t, socket, new(testBackend))
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); err != nil {
		t.Errorf("Connect = %v", err)
	}
}

func TestRestartedDaemonIsUsedAgainAndFailsWhatWasInFlight(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b := new(testBackend)
	d := startDaemon(t, socket, b)
	s, w := newScheduler(t, testOptions(socket)), newWorker(t, testOptions(socket))
	ctx := t.Context()
	if err := s.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	w.Load(ctx, []byte("plan"), []connector.PlannedLoad{{Request: "lost", Blocks: []uint32{3}}})
	d.stop()
	if got := w.Poll(ctx); len(got) != 1 || got[0].Request != "lost" || len(got[0].FailedBlocks) != 1 {
		t.Errorf("Poll = %+v, want the load reported as failed", got)
	}
	startDaemon(t, socket, b)
	if got := s.Match(ctx, &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 64 {
		t.Errorf("Match after the restart = %+v", got)
	}
	w.Load(ctx, []byte("plan"), []connector.PlannedLoad{{Request: "load", Blocks: []uint32{3}}})
	if got := w.Poll(ctx); len(got) != 1 || len(got[0].FailedBlocks) != 0 {
		t.Errorf("Poll after the restart = %+v, want a good load", got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.registered != 2 || b.closed < 2 {
		t.Errorf("memory registered %d times, %d sessions closed; want 2 and at least 2", b.registered, b.closed)
	}
}

func TestSlowDaemonIsGivenUpAtTheDeadline(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b := &testBackend{block: make(chan struct{})}
	startDaemon(t, socket, b)
	defer close(b.block)
	o := testOptions(socket)
	o.CallTimeout = 50 * time.Millisecond
	s := newScheduler(t, o)
	if got := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 0 {
		t.Errorf("Match = %+v, want no offer", got)
	}
}

// A daemon that accepts and never answers costs one deadline, not one for every call.
func TestHungDaemonIsLeftAlone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var accepted atomic.Int32
	go func() {
		for {
			if _, err := l.AcceptUnix(); err != nil {
				return
			}
			accepted.Add(1)
		}
	}()
	o := testOptions(socket)
	o.CallTimeout = 200 * time.Millisecond
	s, w := newScheduler(t, o), newWorker(t, o)
	for range 50 {
		s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)})
		w.Load(t.Context(), []byte("plan"), []connector.PlannedLoad{{Request: "r", Blocks: []uint32{1}}})
		w.Save(t.Context(), []byte("plan"))
	}
	if n := accepted.Load(); n > 2 {
		t.Errorf("%d connections tried in 150 calls, want one for each client", n)
	}
	if got := w.Poll(t.Context()); len(got) != 50 {
		t.Errorf("%d loads reported as failed, want 50", len(got))
	}
}

// A daemon that stands still in the middle of a call may still be copying into engine
// memory: its loads are reported once it has closed its end, and not before.
func TestLoadsOfASilentDaemonAreReportedWhenItHasLetGo(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	b := &testBackend{saving: make(chan struct{}, 1), release: make(chan struct{})}
	startDaemon(t, socket, b)
	o := testOptions(socket)
	o.CallTimeout = 100 * time.Millisecond
	w := newWorker(t, o)
	w.Load(t.Context(), []byte("plan"), []connector.PlannedLoad{{Request: "load", Blocks: []uint32{3}}})
	w.Save(t.Context(), []byte("plan"))
	<-b.saving
	for range 20 {
		if got := w.Poll(t.Context()); len(got) != 0 {
			t.Fatalf("Poll = %+v while the daemon is in the middle of a call", got)
		}
		time.Sleep(time.Millisecond)
	}
	close(b.release)
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if got := w.Poll(t.Context()); len(got) == 1 && got[0].Request == "load" && len(got[0].FailedBlocks) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the load is never reported")
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed == 0 {
		t.Error("the load was reported before the daemon had closed its session")
	}
}

func TestDaemonSurvivesRunningOutOfDescriptors(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	startDaemon(t, socket, new(testBackend))
	s := newScheduler(t, testOptions(socket))
	if err := s.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Millisecond)
	got := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if got.Tokens != 64 {
		t.Errorf("Match = %+v, want those that are connected to go on", got)
	}
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); err != nil {
		t.Errorf("Connect once there are descriptors again = %v", err)
	}
}

func TestErrorsAtHelloAreTold(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	startDaemon(t, socket, &testBackend{openErr: errors.New("disk on fire")})
	err := newScheduler(t, testOptions(socket)).Connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("Connect = %v, want what the daemon said", err)
	}
}

// rawConn connects without a client.
func rawConn(t *testing.T, socket string) (*net.UnixConn, *wire.Conn) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(c)
	t.Cleanup(func() { _ = conn.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, conn
}

func TestGarbageClosesTheConnectionWithAnError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	d := startDaemon(t, socket, new(testBackend))
	raw, conn := rawConn(t, socket)
	if _, err := raw.Write([]byte("GET / HTTP/1.1\r\nHost: kvconnd\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	f, err := conn.Read()
	var body wire.ErrorBody
	if err != nil || f.Kind != wire.KindError || body.Decode(f.Body) != nil || body.Code != wire.CodeProtocol {
		t.Errorf("answer %+v %+v, %v; want a protocol error", f, body, err)
	}
	if _, err := conn.Read(); err == nil {
		t.Error("the connection stays open after garbage")
	}
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); err != nil {
		t.Errorf("others are hurt: %v", err)
	}
	if n := d.server.Stats().ProtocolErrors; n != 1 {
		t.Errorf("%d protocol errors counted, want 1", n)
	}
}

func TestVersionsThatDoNotMeetAreAClearError(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	startDaemon(t, socket, new(testBackend))
	_, conn := rawConn(t, socket)
	o := testOptions(socket)
	manifest, _ := o.Manifest.Canonical()
	hello := wire.Hello{MinVersion: 7, MaxVersion: 9, Role: wire.RoleScheduler, Engine: "e", Manifest: manifest}
	if err := conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, hello.Append); err != nil {
		t.Fatal(err)
	}
	f, err := conn.Read()
	var body wire.ErrorBody
	if err != nil || body.Decode(f.Body) != nil || !errors.Is(body.Err(), connector.ErrVersion) {
		t.Errorf("answer %+v, %v; want ErrVersion", body, err)
	}
}

func TestRequestsArePipelined(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	startDaemon(t, socket, new(testBackend))
	_, conn := rawConn(t, socket)
	o := testOptions(socket)
	manifest, _ := o.Manifest.Canonical()
	hello := wire.Hello{MinVersion: 1, MaxVersion: 1, Role: wire.RoleScheduler, Engine: "e", Manifest: manifest}
	if err := conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, hello.Append); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, i)}
		if err := conn.Write(wire.Header{ID: uint32(i), Op: wire.OpMatch}, func(b []byte) []byte { return wire.AppendMatch(b, &m) }); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Read(); err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		f, err := conn.Read()
		var offer connector.Offer
		if err != nil || f.ID != uint32(i) || wire.DecodeOffer(f.Body, &offer) != nil || offer.Tokens != i {
			t.Fatalf("answer %d: id %d, %+v, %v", i, f.ID, offer, err)
		}
	}
}

func TestSocketIsPrivateAndBelongsToOneDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	startDaemon(t, socket, new(testBackend))
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", info.Mode(), err)
	}
	if _, err := server.Listen(t.Context(), socket); !errors.Is(err, server.ErrSocketInUse) {
		t.Errorf("second Listen = %v, want ErrSocketInUse", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Listen(t.Context(), file); err == nil {
		t.Error("Listen replaced a file that is no socket")
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may connect always")
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := server.Listen(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	s := server.New(server.Options{Epoch: 1, UID: os.Getuid() + 1}, new(testBackend))
	go func() { _ = s.Serve(t.Context(), l) }()
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); err == nil {
		t.Error("another user's daemon accepted the connection")
	}
}

func BenchmarkMatchRoundTrip(b *testing.B) {
	socket := filepath.Join(b.TempDir(), "s")
	l, err := server.Listen(b.Context(), socket)
	if err != nil {
		b.Fatal(err)
	}
	srv := server.New(server.Options{Epoch: 1, UID: os.Getuid()}, new(testBackend))
	ctx, cancel := context.WithCancel(b.Context())
	go func() { _ = srv.Serve(ctx, l) }()
	defer cancel()
	s, err := NewScheduler(testOptions(socket))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 16)}
	b.ReportAllocs()
	for b.Loop() {
		s.Match(ctx, &m)
	}
}
