package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
)

// echo is a backend whose leader offers as many tokens as it is asked for. The real one
// is package daemon's.
type echo struct {
	Worker
	mu     sync.Mutex
	reply  connector.StepReply
	closed chan struct{}
}

func newEcho() *echo { return &echo{closed: make(chan struct{}, 256)} }

func (e *echo) OpenScheduler(context.Context, Peer, *connector.Manifest) (Scheduler, error) {
	return e, nil
}

func (e *echo) OpenWorker(context.Context, Peer, *connector.Manifest, int) (Worker, error) {
	return nil, connector.ErrBadRequest
}

func (e *echo) Match(_ context.Context, m *connector.MatchRequest) (connector.Offer, error) {
	return connector.Offer{Tokens: len(m.Tokens)}, nil
}

func (e *echo) Step(context.Context, *connector.StepRequest) (connector.StepReply, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reply, nil
}

func (e *echo) Loaded(context.Context, *connector.LoadedReport) error { return nil }

func (e *echo) Reset(context.Context) error { return nil }

func (e *echo) Close() { e.closed <- struct{}{} }

// start serves b until the test ends.
func start(t *testing.T, o Options, b Backend) (*Server, string) {
	t.Helper()
	s, socket, stop := startToStop(t, o, b)
	t.Cleanup(stop)
	return s, socket
}

// startToStop serves b until stop is called, which waits for the end.
func startToStop(t *testing.T, o Options, b Backend) (_ *Server, socket string, stop func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvconn") // short: a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket = filepath.Join(dir, "s")
	ctx, cancel := context.WithCancel(context.Background())
	l, err := Reserve(ctx, socket, o.Access)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Publish(ctx); err != nil {
		t.Fatal(err)
	}
	o.Epoch, o.UID = 7, os.Getuid()
	s := New(o, b)
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	return s, socket, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// dial connects without a client.
func dial(t testing.TB, socket string) (*net.UnixConn, *wire.Conn) {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	conn := wire.NewConn(c)
	t.Cleanup(func() { _ = conn.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c, conn
}

// hello is a scheduler's.
func hello(t testing.TB) *wire.Hello {
	t.Helper()
	return helloOf(t, 1)
}

// helloOf is the hello of an engine of that many ranks.
func helloOf(t testing.TB, ranks int) *wire.Hello {
	t.Helper()
	b := manifests.New(func(m *connector.Manifest) { m.TensorParallel = ranks }).Canonical()
	return &wire.Hello{MinVersion: wire.MinVersion, MaxVersion: wire.MaxVersion, Role: wire.RoleScheduler, Client: "test", Engine: "e", Manifest: b}
}

// greet says hello and returns the answer.
func greet(t testing.TB, conn *wire.Conn, h *wire.Hello) wire.Frame {
	t.Helper()
	if err := conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, h.Append); err != nil {
		t.Fatal(err)
	}
	f, err := conn.Read()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// wantError checks an error frame's code.
func wantError(t testing.TB, f *wire.Frame, code string) {
	t.Helper()
	var body wire.ErrorBody
	if err := body.Decode(f.Body); f.Kind != wire.KindError || err != nil || body.Code != code {
		t.Errorf("answer %+v %+v, %v; want an error of code %s", f.Header, body, err, code)
	}
}

func wantClosed(t testing.TB, conn *wire.Conn) {
	t.Helper()
	if f, err := conn.Read(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection stays open: %+v, %v", f.Header, err)
	}
}
