package server

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// frameOf is a request's header and body.
func frameOf(t *testing.T, op wire.Op, body []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, v := range []uint32{uint32(len(body)), 5} {
		out.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
	}
	out.Write(append([]byte{byte(op), 0, 0, 0}, make([]byte, 8)...))
	out.Write(body)
	return out.Bytes()
}

// A client that has closed its end for writing ends its call, as one that has gone does, and is still answered.
func TestHalfClosedChannelsAreAnswered(t *testing.T) {
	b, s, socket := startKeyed(t)
	_, h := openSession(t, socket)
	raw, conn := dial(t, socket)
	if f := greet(t, conn, h); f.Kind != wire.KindReply {
		t.Fatalf("%+v", f.Header)
	}
	for range 3 { // of the others the server hears once the first has ended
		send(t, conn, wire.OpFetch, moveOf(time.Hour))
	}
	<-b.began
	if err := raw.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		f, err := conn.Read()
		if err != nil || f.Op != wire.OpFetch || f.Kind != wire.KindReply {
			t.Fatalf("%+v, %v", f.Header, err)
		}
	}
	if _, err := conn.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("%v after the last answer", err)
	}
	for s.Stats().Connections > 1 {
		time.Sleep(time.Millisecond)
	}
	openTo(t, socket, h) // the session goes on
}

// Channels that have stopped in the middle of a frame, wherever that is, end with their session.
func TestChannelsThatStallEndWithTheirSession(t *testing.T) {
	b, s, socket := startKeyed(t)
	first, h := openSession(t, socket)
	frame := frameOf(t, wire.OpFetch, moveOf(time.Hour))
	large := frameOf(t, wire.OpFetch, make([]byte, 1<<20))
	for _, part := range [][]byte{frame[:1], frame[:wire.HeaderBytes-1], frame[:wire.HeaderBytes], frame[:len(frame)-1], large[:wire.HeaderBytes], large[:100_000]} {
		raw, conn := dial(t, socket)
		if f := greet(t, conn, h); f.Kind != wire.KindReply {
			t.Fatalf("%+v", f.Header)
		}
		if _, err := raw.Write(part); err != nil {
			t.Fatal(err)
		}
	}
	_ = first.Close()
	<-b.closed
	for s.Stats().Connections > 0 {
		time.Sleep(time.Millisecond)
	}
}

// A channel with one flipped bit is answered or closed. Its session and the channel beside it go on.
func TestFlippedBitsOfAChannelHarmNobodyElse(t *testing.T) {
	_, s, socket := startKeyed(t)
	first, h := openSession(t, socket)
	beside := openTo(t, socket, h)
	present := connector.PresentRequest{Request: "r", AnyParent: true, Hashes: make([]connector.Proof, 1)}
	for _, frame := range [][]byte{
		frameOf(t, wire.OpPut, moveOf(time.Millisecond)), frameOf(t, wire.OpPresent, wire.AppendPresent(nil, &present)),
	} {
		for bit := range 8 * len(frame) {
			raw, conn := dial(t, socket)
			greet(t, conn, h)
			bad := bytes.Clone(frame)
			bad[bit/8] ^= 1 << (bit % 8)
			_, err := raw.Write(bad)
			// A length that is too large waits for the rest: it ends here.
			if err = errors.Join(err, raw.CloseWrite()); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = conn.Read()
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				t.Fatalf("bit %d: %v", bit, err)
			}
			_ = conn.Close()
			for s.Stats().Connections > 2 { // a session has few channels
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	for _, conn := range []*wire.Conn{first, beside} {
		if f := ask(t, conn, wire.OpPresent, wire.AppendPresent(nil, &present)); f.Kind != wire.KindReply {
			t.Errorf("%+v", f.Header)
		}
	}
}

// startLarge serves loads whose answers fit into no socket's buffer. It returns two channels.
func startLarge(t *testing.T, writeTimeout time.Duration) (s *Server, asked, beside *wire.Conn) {
	t.Helper()
	b := &keyedBackend{echo: echo{closed: make(chan struct{}, 256)}, began: make(chan struct{}, 64), answerBytes: 1 << 20}
	s, socket := start(t, Options{LoadTimeout: time.Hour, WriteTimeout: writeTimeout}, b)
	_, h := openSession(t, socket)
	asked, beside = openTo(t, socket, h), openTo(t, socket, h)
	for id := range uint32(8) {
		header := wire.Header{ID: id, Op: wire.OpFetch}
		if err := asked.Write(header, func(out []byte) []byte { return append(out, moveOf(time.Millisecond)...) }); err != nil {
			t.Fatal(err)
		}
	}
	<-b.began
	return s, asked, beside
}

func wantTouched(t *testing.T, conn *wire.Conn) {
	t.Helper()
	if f := ask(t, conn, wire.OpTouch, wire.AppendTouch(nil, new(connector.TouchRequest))); f.Kind != wire.KindReply {
		t.Errorf("%+v", f.Header)
	}
}

// A channel whose buffer is full of answers gets them all, whole and in order, once its client reads.
func TestFullBuffersLoseNothing(t *testing.T) {
	_, asked, beside := startLarge(t, time.Minute)
	for id := range uint32(8) {
		wantTouched(t, beside)
		f, err := asked.Read()
		if err != nil || f.ID != id || len(f.Body) < 1<<20 {
			t.Fatalf("answer %d: %+v, %v", id, f.Header, err)
		}
	}
}

// A channel whose client reads nothing is closed, and no other.
func TestFullBuffersAreNotWaitedForWithoutEnd(t *testing.T) {
	s, asked, beside := startLarge(t, 100*time.Millisecond)
	for s.Stats().Connections > 2 {
		wantTouched(t, beside)
	}
	if _, err := asked.Read(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want the end in the middle of an answer", err)
	}
	wantTouched(t, beside)
}
