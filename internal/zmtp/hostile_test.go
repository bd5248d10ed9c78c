package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// peer serves one connection with raw bytes after a proper handshake.
func peer(t *testing.T, socketType string, raw []byte) string {
	t.Helper()
	l := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		defer nc.Close()
		hello := appendCommand(greeting(), "READY", ready(socketType, ""))
		_, _ = nc.Write(append(hello, raw...))
		_, _ = io.Copy(io.Discard, nc)
	}()
	return endpointOf(l.Addr())
}

func TestHostilePublishersAreCutOff(t *testing.T) {
	for name, raw := range map[string][]byte{
		"a frame of 2^62 bytes":     {flagLong, 0x40, 0, 0, 0, 0, 0, 0, 0},
		"a frame above the limit":   {flagLong, 0, 0, 0, 0, 0, 1, 0, 1},
		"a command of 64 KiB":       {flagLong | flagCommand, 0, 0, 0, 0, 0, 1, 0, 0},
		"unknown flags":             {0x10, 0},
		"a command with more":       {flagCommand | flagMore, 1, 0},
		"a command without a name":  {flagCommand, 0},
		"a command's name too long": {flagCommand, 2, 9, 'P'},
		"a heartbeat without ttl":   {flagCommand, 5, 4, 'P', 'I', 'N', 'G'},
		"frames without end":        bytes.Repeat([]byte{flagMore, 1, 'x'}, maxFrames+1),
		"a command in a message":    {flagMore, 1, 'x', flagCommand, 5, 4, 'P', 'I', 'N', 'G'},
	} {
		t.Run(name, func(t *testing.T) {
			limits := clientLimits()
			limits.messageBytes = 64 << 10
			c, err := dial(t.Context(), peer(t, typePub, raw), typeSub, []string{typePub}, limits)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.Recv(new(Message)); !errors.Is(err, ErrProtocol) {
				t.Errorf("%v", err)
			}
		})
	}
}

// The longest name that a command can have is 255 bytes; its length and itself are 256.
func TestACommandsNameMayHaveAnyLength(t *testing.T) {
	for n := range 256 {
		name := strings.Repeat("N", n)
		got, body, err := splitCommand(append(append([]byte{byte(n)}, name...), "body"...))
		if err != nil || got != name || string(body) != "body" {
			t.Errorf("%d bytes: %q, body %q, %v", n, got, body, err)
		}
	}
}

func TestHandshakesWithOthersAreRefused(t *testing.T) {
	if _, err := DialSub(t.Context(), peer(t, typeSub, nil), ""); !errors.Is(err, ErrProtocol) {
		t.Errorf("a SUB as publisher: %v", err)
	}
	for name, hello := range map[string][]byte{
		"ZMTP 1":         {1, 0},
		"ZMTP 2":         append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 1, 1}, make([]byte, 64)...),
		"HTTP":           []byte("HTTP/1.1 400 Bad Request\r\n\r\n" + string(make([]byte, 64))),
		"CURVE":          append(append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 1}, "CURVE"...), make([]byte, 47)...),
		"nothing at all": nil,
		"no socket type": appendCommand(greeting(), "READY", nil),
		"a refusal":      appendCommand(greeting(), "ERROR", []byte("\x02no")),
		"bad properties": appendCommand(greeting(), "READY", []byte{200, 'x'}),
	} {
		client, server := net.Pipe()
		go func() {
			go func() { _, _ = io.Copy(io.Discard, server) }()
			_, _ = server.Write(hello)
			if len(hello) < 12 { // too short to judge: it ends
				_ = server.Close()
			}
		}()
		if _, err := handshake(context.Background(), client, typeSub, []string{typePub}, clientLimits()); err == nil {
			t.Errorf("%s: accepted", name)
		}
		_ = server.Close()
	}
}

func TestADialEndsWithItsContext(t *testing.T) {
	l := listen(t)
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		if nc, err := l.Accept(); err == nil { // and says nothing
			_, _ = io.ReadFull(nc, make([]byte, greetingBytes))
			t.Cleanup(func() { _ = nc.Close() })
		}
	}()
	limits := clientLimits()
	limits.handshake = time.Hour
	if _, err := dial(ctx, endpointOf(l.Addr()), typeSub, []string{typePub}, limits); !errors.Is(err, context.Canceled) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connected to nothing: %v", err)
	}
}

func TestSubscribersAndRequestsAreBounded(t *testing.T) {
	p := startPublisher(t, func(l *serverLimits) { l.conns = 1 })
	c, err := DialSub(t.Context(), endpointOf(p.Addr()), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := DialSub(t.Context(), endpointOf(p.Addr()), ""); err == nil {
		t.Error("a second subscriber where one is allowed")
	}
	for i := range maxSubscriptions + 1 {
		_ = c.Send([]byte{1, byte(i), byte(i >> 8), 'x'}) // fails once it is cut off
	}
	if err := c.Recv(new(Message)); err == nil {
		t.Error("more subscriptions than allowed were taken")
	}
	s := NewReplayServer(listen(t), NewHistory(), slog.New(slog.DiscardHandler))
	background(t, s.Run)
	for _, request := range [][][]byte{{seqFrame(0)}, {nil, []byte("7")}, {nil, nil, seqFrame(0)}, {[]byte("x"), seqFrame(0)}} {
		c, err := DialDealer(t.Context(), endpointOf(s.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Send(request...), c.Recv(new(Message))); err == nil {
			t.Errorf("request %q was answered", request)
		}
		_ = c.Close()
	}
}

// lateListener has a peer at the moment when its server stops.
type lateListener struct {
	peer   lateConn
	closed atomic.Bool
}

type lateConn struct {
	net.Conn
	closed atomic.Bool
}

func (l *lateListener) Accept() (net.Conn, error) { return &l.peer, nil }
func (l *lateListener) Addr() net.Addr            { return nil }
func (l *lateListener) Close() error              { l.closed.Store(true); return nil }
func (c *lateConn) Close() error                  { c.closed.Store(true); return nil }

// The endpoint is free when Run returns, and nobody waits for an answer of a peer that is not served.
func TestAPeerThatComesAtTheEndIsSentAway(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := new(lateListener)
	s := newServer(l, slog.New(slog.DiscardHandler), typePub)
	cancel()
	if err := s.Run(ctx); err != nil || !l.closed.Load() || !l.peer.closed.Load() {
		t.Errorf("%v, listener closed %t, peer closed %t", err, l.closed.Load(), l.peer.closed.Load())
	}
}

func TestEndpoints(t *testing.T) {
	for _, c := range []struct {
		endpoint string
		rank     int
		want     string
	}{
		{"tcp://*:5557", 3, "tcp://*:5560"},
		{"tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"},
		{"tcp://[::1]:5557", 1, "tcp://[::1]:5558"},
		{"ipc:///run/kv", 0, "ipc:///run/kv"},
		{"ipc:///run/kv", 1, ""},
		{"tcp://h:65535", 1, ""},
		{"tcp://h", 0, ""},
		{"inproc://x", 0, ""},
		{"", 0, ""},
	} {
		got, err := Offset(c.endpoint, c.rank)
		if got != c.want && err == nil || (err == nil) != (c.want != "") {
			t.Errorf("%q rank %d: %q %v, want %q", c.endpoint, c.rank, got, err, c.want)
		}
	}
}

func TestReceivingDoesNotAllocate(t *testing.T) {
	wire := AppendMessage(nil, []byte("kv"), seqFrame(1), body(60))
	c := &Conn{r: bufio.NewReader(nil), limits: connLimits{messageBytes: 1 << 20}}
	var m Message
	in := bytes.NewReader(nil)
	if n := testing.AllocsPerRun(100, func() {
		in.Reset(wire)
		c.r.Reset(in)
		if err := c.Recv(&m); err != nil || m.Len() != 3 {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(AppendMessage(nil, []byte("kv"), seqFrame(1), body(10)))
	f.Add(appendCommand(nil, "SUBSCRIBE", []byte("kv")))
	f.Add(greeting())
	f.Add(appendCommand(nil, strings.Repeat("N", 255), nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{r: bufio.NewReader(bytes.NewReader(b)), limits: connLimits{messageBytes: 4096}}
		var m Message
		for {
			m.reset()
			if _, err := c.readMessage(&m); err != nil {
				break
			}
			if len(m.buf) > 4096 || m.Len() > maxFrames {
				t.Fatalf("%d bytes in %d frames", len(m.buf), m.Len())
			}
			_, _, _ = splitCommand(m.Frame(0))
		}
		_ = readGreeting(bytes.NewReader(b))
		_, _ = socketTypeOf(b)
	})
}
