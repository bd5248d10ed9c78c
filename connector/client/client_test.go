package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

func TestCallsReachTheSessionAndAnswersComeBack(t *testing.T) {
	socket := socketPath(t)
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
	if got := w.Save(ctx, reply.Metadata); got.Taken != 1 || got.Present != 2 {
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
	socket := socketPath(t)
	s, w := newScheduler(t, testOptions(socket)), newWorker(t, testOptions(socket))
	ctx := t.Context()
	if got := s.Match(ctx, &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 0 {
		t.Errorf("Match = %+v, want no offer", got)
	}
	reply := s.Step(ctx, &connector.StepRequest{Allocs: []connector.Alloc{{Request: "r", Blocks: [][]uint32{{5, 6, 7, 8}}, Computed: 16, External: 32}}})
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

// What a client says under one number is known under it, and under no other.
func TestSessionEndsWhereTheLeaderForgets(t *testing.T) {
	socket := socketPath(t)
	d := startDaemon(t, socket, new(testBackend))
	s := newScheduler(t, testOptions(socket))
	ctx := t.Context()
	ask := func(from int) (session uint64, tokens int) {
		offer := s.Match(ctx, &connector.MatchRequest{Request: "r", From: from, Tokens: make([]uint32, 64)})
		return s.Session(), offer.Tokens
	}
	first, n := ask(0)
	if again, _ := ask(0); n != 64 || again != first {
		t.Errorf("session %d, then %d on one connection, %d tokens offered", first, again, n)
	}
	unknown, n := ask(16) // which this backend's leader never knows
	if n != 0 || unknown == first {
		t.Errorf("session %d as before, %d tokens offered by a leader that does not know the request", unknown, n)
	}
	d.stop()
	startDaemon(t, socket, new(testBackend))
	if restarted, n := ask(0); n != 64 || restarted == unknown {
		t.Errorf("session %d as before the restart, %d tokens offered", restarted, n)
	}
}

func TestRefusedSocketIsAClearError(t *testing.T) {
	socket := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Connect = %v, want connection refused", err)
	}
	// The daemon replaces the socket of a dead one.
	startDaemon(t, socket, new(testBackend))
	if err := newScheduler(t, testOptions(socket)).Connect(t.Context()); err != nil {
		t.Errorf("Connect = %v", err)
	}
}

func TestRestartedDaemonIsUsedAgainAndFailsWhatWasInFlight(t *testing.T) {
	socket := socketPath(t)
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

// A leader plans nothing for ranks that cannot load, so that nothing but Poll comes of a
// refused worker.
func TestRefusedWorkerTriesAgainWithoutBeingAskedFor(t *testing.T) {
	socket := socketPath(t)
	b := &testBackend{registerErr: connector.ErrBadRequest}
	startDaemon(t, socket, b)
	w := newWorker(t, testOptions(socket))
	if err := w.Connect(t.Context()); err == nil {
		t.Fatal("registered")
	}
	b.mu.Lock()
	b.registerErr = nil
	b.mu.Unlock()
	wait.For(t, "registered again", func() bool {
		w.Poll(t.Context())
		return b.registrations() == 2
	})
}

func TestSlowDaemonIsGivenUpAtTheDeadline(t *testing.T) {
	socket := socketPath(t)
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
	socket := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	var accepted atomic.Int32
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }() // kept until then: the collector closes what nobody has
			accepted.Add(1)
		}
	}()
	o := testOptions(socket)
	o.CallTimeout = 200 * time.Millisecond
	s, w := newScheduler(t, o), newWorker(t, o)
	began := time.Now()
	for range 50 {
		s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)})
		w.Load(t.Context(), []byte("plan"), []connector.PlannedLoad{{Request: "r", Blocks: []uint32{1}}})
		w.Save(t.Context(), []byte("plan"))
	}
	// More only where the calls have taken longer than the daemon is left alone for.
	most := 2 * (1 + int32(time.Since(began)/(hungPause*o.CallTimeout)))
	if n := accepted.Load(); n > most {
		t.Errorf("%d connections tried in 150 calls, want at most %d, one for each client", n, most)
	}
	if got := w.Poll(t.Context()); len(got) != 50 {
		t.Errorf("%d loads reported as failed, want 50", len(got))
	}
}

func TestDaemonSurvivesRunningOutOfDescriptors(t *testing.T) {
	socket := socketPath(t)
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
	socket := socketPath(t)
	startDaemon(t, socket, &testBackend{openErr: errors.New("disk on fire")})
	err := newScheduler(t, testOptions(socket)).Connect(t.Context())
	if err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("Connect = %v, want what the daemon said", err)
	}
}

func TestMatchCostsNoAllocation(t *testing.T) {
	socket := socketPath(t)
	startDaemon(t, socket, new(testBackend))
	s := newScheduler(t, testOptions(socket))
	m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, 16)}
	ctx := t.Context()
	if n := testing.AllocsPerRun(200, func() { s.Match(ctx, &m) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
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
