package server

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

func TestGarbageClosesTheConnectionWithAnError(t *testing.T) {
	s, socket := start(t, Options{}, newEcho())
	raw, conn := dial(t, socket)
	if _, err := raw.Write([]byte("GET / HTTP/1.1\r\nHost: kvconnd\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	f, err := conn.Read()
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, &f, wire.CodeProtocol)
	wantClosed(t, conn)
	_, other := dial(t, socket)
	if f := greet(t, other, hello(t)); f.Kind != wire.KindReply {
		t.Error("others are hurt")
	}
	if n := s.Stats().ProtocolErrors; n != 1 {
		t.Errorf("%d protocol errors counted, want 1", n)
	}
}

func TestHostileFramesCloseTheConnectionWithAnError(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	for name, tc := range map[string]struct {
		op   wire.Op
		body []byte
	}{
		"second hello":       {wire.OpHello, hello(t).Append(nil)},
		"worker's operation": {wire.OpLoad, wire.AppendMeta(nil, []byte("x"))},
		"body of nonsense":   {wire.OpMatch, []byte{0xc1}},
		"cut body":           {wire.OpStep, wire.AppendStep(nil, new(connector.StepRequest))[:5]},
		"huge array":         {wire.OpStep, append(msgp.AppendString(msgp.AppendMapHeader(nil, 1), "allocs"), 0xdd, 0xff, 0xff, 0xff, 0xff)},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := dial(t, socket)
			greet(t, conn, hello(t))
			if err := conn.Write(wire.Header{ID: 2, Op: tc.op}, func(b []byte) []byte { return append(b, tc.body...) }); err != nil {
				t.Fatal(err)
			}
			f, err := conn.Read()
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, &f, wire.CodeProtocol)
			wantClosed(t, conn)
		})
	}
}

// helloOfVersion1 is what a client of protocol 1 sends.
func helloOfVersion1(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 6)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "versions"), 2)
	b = msgp.AppendInt(msgp.AppendInt(b, 1), 1)
	b = msgp.AppendString(msgp.AppendString(b, "role"), "worker")
	b = msgp.AppendString(msgp.AppendString(b, "client"), "old/1")
	b = msgp.AppendString(msgp.AppendString(b, "engine"), "e")
	b = msgp.AppendBytes(msgp.AppendString(b, "manifest"), []byte(`{"layers":2}`))
	return msgp.AppendInt(msgp.AppendString(b, "shard"), 0)
}

// helloOfVersion9 is what a client of a protocol to come may send: other types included.
func helloOfVersion9(b []byte) []byte {
	b = msgp.AppendMapHeader(b, 3)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "versions"), 2)
	b = msgp.AppendInt(msgp.AppendInt(b, 7), 9)
	b = msgp.AppendInt(msgp.AppendString(b, "role"), 3)
	return msgp.AppendMapHeader(msgp.AppendString(b, "manifest"), 0)
}

func TestVersionsThatDoNotMeetAreAClearError(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	for name, tc := range map[string]struct {
		body func([]byte) []byte
		want string
	}{
		"older client": {helloOfVersion1, "the client speaks protocol 1 to 1, this daemon 2 to 5: update the engine's connector"},
		"newer client": {helloOfVersion9, "the client speaks protocol 7 to 9, this daemon 2 to 5: update kvconnd"},
	} {
		t.Run(name, func(t *testing.T) {
			_, conn := dial(t, socket)
			if err := conn.Write(wire.Header{ID: 1, Op: wire.OpHello}, tc.body); err != nil {
				t.Fatal(err)
			}
			f, err := conn.Read()
			if err != nil {
				t.Fatal(err)
			}
			wantError(t, &f, wire.CodeVersion)
			var body wire.ErrorBody
			if err := body.Decode(f.Body); err != nil || !errors.Is(body.Err(), connector.ErrVersion) || !strings.Contains(body.Message, tc.want) {
				t.Errorf("message %q, %v; want %q", body.Message, err, tc.want)
			}
			wantClosed(t, conn)
		})
	}
}

func TestClientThatSpeaksMoreVersionsGetsTheCommonOne(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	_, conn := dial(t, socket)
	h := hello(t)
	h.MinVersion, h.MaxVersion = 1, 9
	f := greet(t, conn, h)
	var reply wire.HelloReply
	if err := reply.Decode(f.Body); err != nil || reply.Version != wire.MaxVersion {
		t.Errorf("version %d, %v; want %d", reply.Version, err, wire.MaxVersion)
	}
}

// Handoff mode is of version 3.
func TestHandoffModeNeedsItsVersion(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	h := hello(t)
	h.MinVersion, h.MaxVersion = 2, 2
	_, conn := dial(t, socket)
	if f := greet(t, conn, h); f.Kind != wire.KindReply {
		t.Errorf("answer %+v to a client of version 2", f.Header)
	}
	h.Handoff = true
	_, handoff := dial(t, socket)
	f := greet(t, handoff, h)
	wantError(t, &f, wire.CodeVersion)
	wantClosed(t, handoff)
}

func TestRequestsArePipelined(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	_, conn := dial(t, socket)
	greet(t, conn, hello(t))
	for i := range 50 {
		m := connector.MatchRequest{Request: "r", Tokens: make([]uint32, i)}
		if err := conn.Write(wire.Header{ID: uint32(i), Op: wire.OpMatch}, func(b []byte) []byte { return wire.AppendMatch(b, &m) }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 50 {
		f, err := conn.Read()
		var offer connector.Offer
		if err != nil || f.ID != uint32(i) || wire.DecodeOffer(f.Body, &offer) != nil || offer.Tokens != i {
			t.Fatalf("answer %d: id %d, %+v, %v", i, f.ID, offer, err)
		}
	}
}

func TestClientThatNeverSaysHelloIsClosed(t *testing.T) {
	_, socket := start(t, Options{HelloTimeout: 10 * time.Millisecond}, newEcho())
	_, conn := dial(t, socket)
	wantClosed(t, conn)
}

// A client that never reads must not hold a session open.
func TestClientThatNeverReadsIsClosed(t *testing.T) {
	b := newEcho()
	b.reply.Metadata = make([]byte, 8<<20)
	_, socket := start(t, Options{WriteTimeout: 200 * time.Millisecond}, b)
	_, conn := dial(t, socket)
	greet(t, conn, hello(t))
	if err := conn.Write(wire.Header{ID: 2, Op: wire.OpStep}, func(b []byte) []byte { return wire.AppendStep(b, new(connector.StepRequest)) }); err != nil {
		t.Fatal(err)
	}
	<-b.closed
}

func TestConnectionsAreBounded(t *testing.T) {
	s, socket := start(t, Options{MaxConns: 2}, newEcho())
	for range 2 {
		_, conn := dial(t, socket)
		greet(t, conn, hello(t))
	}
	_, surplus := dial(t, socket)
	wantClosed(t, surplus)
	if st := s.Stats(); st.Connections != 2 || st.Refused != 1 {
		t.Errorf("%+v, want 2 connections and 1 refused", st)
	}
}

func TestSocketIsPrivateAndBelongsToOneDaemon(t *testing.T) {
	_, socket := start(t, Options{}, newEcho())
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket mode %v, %v; want 0600", info.Mode(), err)
	}
	if _, err := Listen(t.Context(), socket); !errors.Is(err, ErrSocketInUse) {
		t.Errorf("second Listen = %v, want ErrSocketInUse", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), file); err == nil {
		t.Error("Listen replaced a file that is no socket")
	}
}

func TestStopDoesNotWaitForIdleClients(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	socket := filepath.Join(t.TempDir(), "s")
	l, err := Listen(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Epoch: 1, UID: os.Getuid()}, newEcho())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	_, conn := dial(t, socket)
	greet(t, conn, hello(t))
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	wantClosed(t, conn)
}
