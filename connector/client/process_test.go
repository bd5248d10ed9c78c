package client

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/connector/wire"
)

const helperEnv = "KVCONN_TEST_HELPER"

// daemonProcess starts a daemon in a process of its own, whose loads never end their
// copy.
func daemonProcess(t *testing.T, socket string) *os.Process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestHelperDaemon$")
	cmd.Env = append(os.Environ(), helperEnv+"="+socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("daemon process: %q, %v", line, err)
	}
	return cmd.Process
}

func TestHelperDaemon(t *testing.T) {
	socket := os.Getenv(helperEnv)
	if socket == "" {
		t.Skip("part of another test")
	}
	l, err := server.Listen(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = os.Stdout.WriteString("ready\n")
	s := server.New(server.Options{Epoch: 1, UID: os.Getuid()}, &testBackend{copying: true, silent: true})
	_ = s.Serve(context.Background(), l)
}

func signal(t *testing.T, p *os.Process, sig syscall.Signal) {
	t.Helper()
	if err := p.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed with kill -9 in the middle of a copy, also one that was stopped
// before: the blocks come back with its end, and not before.
func TestBlocksOfAKilledDaemonComeBack(t *testing.T) {
	socket := socketPath(t)
	p := daemonProcess(t, socket)
	w := newWorker(t, testOptions(socket))
	if err := w.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Load(t.Context(), []byte("plan"), load3())
	signal(t, p, syscall.SIGSTOP)
	w.mu.Lock()
	w.link.opts.CallTimeout = 1 // of a daemon that stands still nothing is to be expected
	w.mu.Unlock()
	wantNoReport(t, w, "while the daemon is stopped in the middle of a copy")
	if err := w.Cancel(canceled(t), "load"); !errors.Is(err, context.Canceled) {
		t.Errorf("Cancel = %v while the daemon is stopped in the middle of a copy", err)
	}
	signal(t, p, syscall.SIGKILL)
	wantFailed(t, pollFor(t, w), "load")
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// answerHello is a daemon of another version: it answers every hello with one frame.
func answerHello(t *testing.T, socket string, kind wire.Kind, body []byte) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(c)
			if f, err := conn.Read(); err == nil {
				_ = conn.Write(wire.Header{ID: f.ID, Op: f.Op, Kind: kind, Epoch: 9}, func(b []byte) []byte { return append(b, body...) })
			}
			_ = conn.Close()
		}
	}()
}

func TestVersionsThatDoNotMeetAreAClearError(t *testing.T) {
	older := wire.ErrorBody{Code: wire.CodeVersion, Message: "the client speaks 2 to 2, this daemon 1 to 1"}
	newer := msgp.AppendMapHeader(nil, 2)
	newer = msgp.AppendInt(msgp.AppendString(newer, "version"), 9)
	newer = msgp.AppendString(msgp.AppendString(newer, "server"), "kvconnd/9")
	for name, tc := range map[string]struct {
		kind wire.Kind
		body []byte
		want string
	}{
		"older daemon": {wire.KindError, older.Append(nil), "this daemon 1 to 1"},
		"newer daemon": {wire.KindReply, newer, "(kvconnd/9) chose protocol 9, this client speaks 2 to 5"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := socketPath(t)
			answerHello(t, socket, tc.kind, tc.body)
			s := newScheduler(t, testOptions(socket))
			if err := s.Connect(t.Context()); !errors.Is(err, connector.ErrVersion) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Connect = %v, want ErrVersion with %q", err, tc.want)
			}
			if got := s.Match(t.Context(), &connector.MatchRequest{Request: "r", Tokens: make([]uint32, 64)}); got.Tokens != 0 {
				t.Errorf("Match = %+v", got)
			}
		})
	}
}

// giving is a daemon that sends descriptors that nobody asked for with its answer to one call.
func giving(t *testing.T, socket string, gift *os.File, with wire.Op, kind wire.Kind, count int) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	hello := wire.HelloReply{Version: wire.MaxVersion, Server: "test", LoadTimeoutMS: 1000}
	refusal := wire.ErrorBody{Code: wire.CodeBadRequest, Message: "no"}
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			conn := wire.NewConn(c)
			for {
				f, err := conn.Read()
				if err != nil {
					break
				}
				f.CloseFiles()
				h, body, files := wire.Header{ID: f.ID, Op: f.Op, Kind: wire.KindReply, Epoch: 9}, wire.AppendEmpty, []*os.File(nil)
				if f.Op == wire.OpHello {
					body = hello.Append
				}
				if f.Op == with {
					files = slices.Repeat([]*os.File{gift}, count)
					if h.Kind = kind; kind == wire.KindError {
						body = refusal.Append
					}
				}
				_ = conn.Write(h, body, files...)
			}
			_ = conn.Close()
		}
	}()
}

func TestDescriptorsThatNobodyAskedForAreClosed(t *testing.T) {
	gift, err := os.CreateTemp(t.TempDir(), "gift")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gift.Close() })
	for _, tc := range []struct {
		with  wire.Op
		kind  wire.Kind
		count int
	}{
		{wire.OpHello, wire.KindReply, 1}, {wire.OpHello, wire.KindError, 2},
		{wire.OpRegister, wire.KindReply, 1}, {wire.OpRegister, wire.KindReply, 3}, {wire.OpRegister, wire.KindError, 1},
		{wire.OpSave, wire.KindReply, 1}, {wire.OpLoad, wire.KindError, 1},
	} {
		for _, tier := range []func(*os.File, time.Duration) error{nil, func(*os.File, time.Duration) error { return errors.New("cannot be mapped") }} {
			socket := socketPath(t)
			giving(t, socket, gift, tc.with, tc.kind, tc.count)
			o := testOptions(socket)
			o.HostTier = tier
			w := newWorker(t, o)
			_ = w.Connect(t.Context())
			w.Save(t.Context(), []byte("plan"))
			w.Load(t.Context(), []byte("plan"), load3())
			w.Close()
			open := 0
			entries, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && path == gift.Name() {
					open++
				}
			}
			if open != 1 {
				t.Errorf("%+v: %d descriptors of the gift are open, want the test's own", tc, open)
			}
		}
	}
}
