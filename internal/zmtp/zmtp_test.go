package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/testkit/zmqtest"
)

// startPublisher runs a publisher, with other limits if need be, until the test ends.
func startPublisher(t testing.TB, change ...func(*serverLimits)) *Publisher {
	t.Helper()
	p := NewPublisher(listen(t), slog.New(slog.DiscardHandler))
	for _, f := range change {
		f(&p.limits)
	}
	background(t, p.Run)
	return p
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := Listen(context.Background(), "tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// background runs f until the test ends.
func background(t testing.TB, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func endpointOf(a net.Addr) string { return "tcp://" + a.String() }

// subscribed waits until n subscribers have asked for something.
func (p *Publisher) subscribed(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subscribers {
		s.mu.Lock()
		if len(s.prefixes) > 0 {
			n--
		}
		s.mu.Unlock()
	}
	return n <= 0
}

func seqFrame(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// body is a payload of some size that follows from its number.
func body(n int) []byte { return bytes.Repeat([]byte{byte(n)}, n*37%3000) }

func recv(t testing.TB, c *Conn) []string {
	t.Helper()
	var m Message
	if err := c.Recv(&m); err != nil {
		t.Fatal(err)
	}
	frames := make([]string, m.Len())
	for i := range frames {
		frames[i] = string(m.Frame(i))
	}
	return frames
}

func TestMessagesArriveInOrderAndWhole(t *testing.T) {
	p := startPublisher(t)
	c, err := DialSub(t.Context(), endpointOf(p.Addr()), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wait.For(t, "a subscription", func() bool { return p.subscribed(1) })
	const n = 300
	for i := range n {
		p.Publish([]byte("other"), seqFrame(i))
		p.Publish([]byte("kv"), seqFrame(i), body(i))
	}
	for i := range n {
		if got := recv(t, c); len(got) != 3 || got[0] != "kv" || got[1] != string(seqFrame(i)) || got[2] != string(body(i)) {
			t.Fatalf("message %d: %d frames, %q", i, len(got), got[:2])
		}
	}
	if s := p.Stats(); s.Dropped != 0 || s.Published != 2*n {
		t.Errorf("%+v", s)
	}
}

func TestUnixSocketsCarryTheSame(t *testing.T) {
	endpoint := "ipc://" + t.TempDir() + "/events"
	l, err := Listen(t.Context(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(t.Context(), endpoint); err == nil {
		t.Error("one socket was opened twice")
	}
	p := NewPublisher(l, slog.New(slog.DiscardHandler))
	background(t, p.Run)
	c, err := DialSub(t.Context(), endpoint, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wait.For(t, "a subscription", func() bool { return p.subscribed(1) })
	p.Publish([]byte("a"), []byte("b"))
	if got := recv(t, c); got[1] != "b" {
		t.Errorf("%q", got)
	}
}

// One subscriber reads nothing at all; the other gets every message.
func TestAStuckSubscriberStopsNobody(t *testing.T) {
	p := startPublisher(t, func(l *serverLimits) { l.queueMessages, l.conn.write = 64, time.Hour })
	stuck, err := DialSub(t.Context(), endpointOf(p.Addr()), "")
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	c, err := DialSub(t.Context(), endpointOf(p.Addr()), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	wait.For(t, "two subscriptions", func() bool { return p.subscribed(2) })
	payload := make([]byte, 64<<10)
	sent := 0
	for ; p.Stats().Dropped == 0 || sent < 500; sent++ {
		p.Publish([]byte("kv"), seqFrame(sent), payload)
		if got := recv(t, c); got[1] != string(seqFrame(sent)) {
			t.Fatalf("message %d: %x", sent, got[1])
		}
	}
	if s := p.Stats(); s.Subscribers != 2 || s.Dropped == 0 {
		t.Errorf("%+v", s)
	}
}

func TestHeartbeatsAreAnswered(t *testing.T) {
	p := startPublisher(t)
	c, err := DialSub(t.Context(), endpointOf(p.Addr()), "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.writeRaw(appendCommand(nil, "PING", []byte{0, 10, 'c', 't', 'x'})); err != nil {
		t.Fatal(err)
	}
	name, got, err := c.readCommand()
	if err != nil || name != "PONG" || string(got) != "ctx" {
		t.Errorf("%q %q %v", name, got, err)
	}
}

// The other implementations of ZeroMQ, as subscribers of ours.
func TestOtherSubscribersReadOurs(t *testing.T) {
	const n = 200
	t.Run("libzmq", func(t *testing.T) {
		p := startPublisher(t)
		sub := zmqtest.Start(t, "testdata/libzmq_sub.py", "sub", endpointOf(p.Addr()), "kv")
		sub.Line()
		wait.For(t, "a subscription", func() bool { return p.subscribed(1) })
		for i := range n {
			p.Publish([]byte("x"), seqFrame(i))
			p.Publish([]byte("kv"), seqFrame(i), body(i))
		}
		for i := range n {
			got := sub.Line()
			want := hex.EncodeToString(body(i))
			if want == "" {
				want = "-"
			}
			if len(got) != 3 || got[0] != "6b76" || got[1] != hex.EncodeToString(seqFrame(i)) || got[2] != want {
				t.Fatalf("message %d: %.80q", i, got)
			}
		}
	})
	t.Run("go-zeromq", func(t *testing.T) {
		p := startPublisher(t)
		sub := zmq4.NewSub(t.Context())
		defer sub.Close()
		if err := errors.Join(sub.Dial(endpointOf(p.Addr())), sub.SetOption(zmq4.OptionSubscribe, "kv")); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "a subscription", func() bool { return p.subscribed(1) })
		for i := range n {
			p.Publish([]byte("kv"), seqFrame(i), body(i))
		}
		for i := range n {
			m, err := sub.Recv()
			if err != nil || len(m.Frames) != 3 || !bytes.Equal(m.Frames[1], seqFrame(i)) || !bytes.Equal(m.Frames[2], body(i)) {
				t.Fatalf("message %d: %d frames, %v", i, len(m.Frames), err)
			}
		}
	})
}

func TestWeReadOtherPublishers(t *testing.T) {
	pub := zmq4.NewPub(t.Context())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c, err := DialSub(t.Context(), endpointOf(pub.Addr()), "kv")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// It gives no sign of having heard the subscription: send until something arrives.
	got := make(chan []string, 1)
	go func() { got <- recv(t, c) }()
	i := 0
	wait.For(t, "a message", func() bool {
		if err := pub.SendMulti(zmq4.NewMsgFrom([]byte("kv"), seqFrame(i), body(300))); err != nil {
			t.Fatal(err)
		}
		i++
		return len(got) > 0
	})
	if m := <-got; len(m) != 3 || m[2] != string(body(300)) {
		t.Errorf("%d frames", len(m))
	}
}

func TestReplaysAreAnswered(t *testing.T) {
	h := newHistory(100, 1<<20)
	s := NewReplayServer(listen(t), h, slog.New(slog.DiscardHandler))
	background(t, s.Run)
	for i := range 150 {
		if seq := h.Append([]byte("kv"), body(i)); seq != uint64(i) {
			t.Fatalf("batch %d has number %d", i, seq)
		}
	}
	for _, c := range []struct{ start, first int }{{0, 50}, {120, 120}, {149, 149}, {150, 150}, {1000, 150}} {
		t.Run(fmt.Sprintf("from %d", c.start), func(t *testing.T) {
			conn, err := DialDealer(t.Context(), endpointOf(s.Addr()))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			next := uint64(c.first)
			err = conn.Replay(uint64(c.start), time.Minute, func(seq uint64, payload []byte) bool {
				if seq != next || !bytes.Equal(payload, body(int(seq))) {
					t.Errorf("batch %d of %d bytes, want %d", seq, len(payload), next)
				}
				next++
				return true
			})
			if err != nil || next != 150 {
				t.Errorf("up to %d: %v", next, err)
			}
			dealer := zmqtest.Start(t, "testdata/libzmq_sub.py", "replay", endpointOf(s.Addr()), strconv.Itoa(c.start))
			for i := c.first; i < 150; i++ {
				if got := dealer.Line(); len(got) != 4 || got[0] != "-" || got[1] != "6b76" || got[2] != hex.EncodeToString(seqFrame(i)) {
					t.Fatalf("batch %d: %.80q", i, got)
				}
			}
			if got := strings.Join(dealer.Line(), " "); got != "- - ffffffffffffffff -" {
				t.Errorf("end: %q", got)
			}
		})
	}
}

func TestHistoryIsBoundedInBytes(t *testing.T) {
	h := newHistory(10, 100)
	for range 5 {
		h.Append(nil, make([]byte, 40))
	}
	if seq, _, ok := h.from(0); !ok || seq != 3 || h.bytes > 100 {
		t.Errorf("oldest is %d, %d bytes", seq, h.bytes)
	}
	h.Append(nil, make([]byte, 1000)) // alone too large, and still the last
	if seq, _, ok := h.from(0); !ok || seq != 5 {
		t.Errorf("oldest is %d", seq)
	}
}
