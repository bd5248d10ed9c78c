package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// A process that opens connections without end leaves places to others.
func TestOneProcessCannotTakeAllConnections(t *testing.T) {
	s, socket := start(t, Options{MaxConns: 12, MaxProcessConns: 3}, newEcho())
	for range 3 {
		_, conn := dial(t, socket)
		greet(t, conn, hello(t))
	}
	_, surplus := dial(t, socket)
	wantClosed(t, surplus)
	out, err := self(t, "OtherProcess", socket).CombinedOutput()
	if err != nil {
		t.Fatalf("another process is kept out: %v\n%s", err, out)
	}
	if st := s.Stats(); st.Refused != 1 {
		t.Errorf("%+v, want 1 refused", st)
	}
}

func TestHelperOtherProcess(t *testing.T) {
	_, conn := dial(t, helperSocket(t))
	if f := greet(t, conn, hello(t)); f.Kind != wire.KindReply {
		t.Errorf("answer %+v", f.Header)
	}
}

// Connections that say nothing take few places, and only for a while.
func TestSilentConnectionsLeaveRoomForOthers(t *testing.T) {
	s, socket := start(t, Options{MaxConns: 8, HelloTimeout: 500 * time.Millisecond}, newEcho())
	for !greeted(t, socket) {
	}
	was := s.Stats().Accepted
	for range 2 { // a quarter of 8
		dial(t, socket)
	}
	wait.For(t, "accepted", func() bool { return s.Stats().Accepted >= was+2 })
	wait.For(t, "connections end", func() bool { return s.Stats().Connections <= 1 })
	for range 6 {
		for !greeted(t, socket) { // a machine that is busy may be later than the time for a hello
		}
	}
}

// A connection that says nothing is closed at once where enough of them are there already.
func TestSilentConnectionsAreFew(t *testing.T) {
	s, socket := start(t, Options{MaxConns: 8, HelloTimeout: time.Hour}, newEcho())
	for range 2 { // a quarter of 8
		dial(t, socket)
	}
	wait.For(t, "accepted", func() bool { return s.Stats().Accepted >= 2 })
	_, surplus := dial(t, socket)
	wantClosed(t, surplus)
}

// greeted reports whether a new connection says hello in time.
func greeted(t *testing.T, socket string) bool {
	t.Helper()
	_, conn := dial(t, socket)
	err := conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, hello(t).Append)
	if err == nil {
		var f wire.Frame
		if f, err = conn.Read(); err == nil && f.Kind == wire.KindReply {
			return true
		}
	}
	_ = conn.Close() // else refused connections would count, and the test would run out of descriptors
	return false
}

func TestOneEngineCannotTakeAllConnections(t *testing.T) {
	s, socket := start(t, Options{}, newEcho())
	const most = engineConnsPerSession*2 + engineConnsMore
	for range most {
		_, conn := dial(t, socket)
		if f := greet(t, conn, hello(t)); f.Kind != wire.KindReply {
			t.Fatalf("answer %+v", f.Header)
		}
	}
	_, surplus := dial(t, socket)
	f := greet(t, surplus, hello(t))
	wantError(t, &f, wire.CodeBadRequest)
	wantClosed(t, surplus)
	other := hello(t)
	other.Engine = "another"
	_, conn := dial(t, socket)
	if f := greet(t, conn, other); f.Kind != wire.KindReply {
		t.Errorf("another engine is kept out: %+v", f.Header)
	}
	wait.For(t, "connections end", func() bool { return s.Stats().Connections <= most+1 })
	s.admission.mu.Lock()
	defer s.admission.mu.Unlock()
	if n := s.admission.engines["another"]; n != 1 {
		t.Errorf("the other engine has %d connections, want 1", n)
	}
}

// Eight instances that were given one id have room, also while the connections that they had
// before are not known to have ended.
func TestEightInstancesOfOneIDAreLetIn(t *testing.T) {
	const instances, ranks = 8, 8
	_, socket := start(t, Options{MaxProcessConns: 1024}, newEcho())
	h := helloOf(t, ranks)
	for i := range 2 * instances * (ranks + 1) {
		_, conn := dial(t, socket)
		if f := greet(t, conn, h); f.Kind != wire.KindReply {
			t.Fatalf("connection %d: %+v", i, f.Header)
		}
	}
}

// Whatever an engine says of its ranks, half of the connections are left to others.
func TestManyRanksLeaveConnectionsToOthers(t *testing.T) {
	_, socket := start(t, Options{MaxConns: 64}, newEcho())
	h := helloOf(t, 1000)
	for range 32 {
		_, conn := dial(t, socket)
		if f := greet(t, conn, h); f.Kind != wire.KindReply {
			t.Fatalf("answer %+v", f.Header)
		}
	}
	_, surplus := dial(t, socket)
	f := greet(t, surplus, h)
	wantError(t, &f, wire.CodeBadRequest)
}

func TestLargeFrameBeforeHelloIsRefusedUnread(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	raw, conn := dial(t, socket)
	frame := make([]byte, wire.HeaderBytes)
	frame[2] = 8 // half a megabyte is announced and nothing sent
	frame[8] = byte(wire.OpHello)
	if _, err := raw.Write(frame); err != nil {
		t.Fatal(err)
	}
	f, err := conn.Read()
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, &f, wire.CodeProtocol)
	wantClosed(t, conn)
}

// Defect 16: an answer that fits into no frame is an error, and the connection goes on.
func TestAnswerBeyondAFrameIsAnErrorAndTheConnectionLives(t *testing.T) {
	b := newEcho()
	b.reply.Metadata = make([]byte, wire.MaxBodyBytes)
	_, socket := start(t, Options{}, b)
	_, conn := dial(t, socket)
	greet(t, conn, hello(t))
	ask := func() wire.Frame {
		t.Helper()
		if err := conn.Write(wire.Header{ID: 2, Op: wire.OpStep}, func(b []byte) []byte { return wire.AppendStep(b, new(connector.StepRequest)) }); err != nil {
			t.Fatal(err)
		}
		f, err := conn.Read()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := ask()
	wantError(t, &f, wire.CodeInternal)
	b.mu.Lock()
	b.reply.Metadata = []byte("plan")
	b.mu.Unlock()
	if f := ask(); f.Kind != wire.KindReply {
		t.Errorf("answer %+v", f.Header)
	}
}

// While the daemon has no descriptor left, who connects is told at once; once there are
// some again engines are served without a restart.
func TestServerSurvivesALackOfDescriptors(t *testing.T) {
	socket := socketDir(t) + "/s"
	cmd := self(t, "Starved", socket)
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	await := func(want string) {
		t.Helper()
		if line, err := said.ReadString('\n'); strings.TrimSpace(line) != want {
			rest, _ := io.ReadAll(said)
			t.Fatalf("the server says %q, %v, want %q\n%s", line, err, want, rest)
		}
	}
	await("starved")
	for range 3 {
		_, conn := dial(t, socket)
		wantClosed(t, conn)
	}
	var impatient sync.WaitGroup
	defer impatient.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	for range 4 {
		impatient.Go(func() { reconnect(ctx, socket) })
	}
	if _, err := in.Write([]byte("feed\n")); err != nil {
		t.Fatal(err)
	}
	await("fed")
	wait.For(t, "an engine is served, however often others that were turned away connect again", func() bool { return greeted(t, socket) })
	stop()
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// reconnect connects again as soon as it is turned away.
func reconnect(ctx context.Context, socket string) {
	for ctx.Err() == nil {
		c, err := net.Dial("unix", socket)
		if err != nil {
			continue
		}
		end := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
		_, _ = c.Read(make([]byte, 1))
		end()
		_ = c.Close()
	}
}

// The helper serves, takes all descriptors that it may have, and gives them back when told.
func TestHelperStarved(t *testing.T) {
	l, err := Listen(t.Context(), helperSocket(t))
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Epoch: 7, UID: os.Getuid()}, newEcho())
	before := openDescriptors(t)
	go func() { _ = s.Serve(t.Context(), l) }()
	// No connection: the watch of its process would close a descriptor at any time after it.
	wait.For(t, "the reserve", func() bool { return openDescriptors(t) > before })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		t.Fatal(err)
	}
	var taken []int
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			break
		}
		taken = append(taken, fd)
	}
	fmt.Println("starved")
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	for _, fd := range taken {
		_ = unix.Close(fd)
	}
	fmt.Println("fed")
	_, _ = io.ReadAll(in)
	os.Exit(0)
}
