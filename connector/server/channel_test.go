package server

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
	"github.com/kvconn/kvconn/internal/testkit/manifests"
)

// keyedBackend has sessions whose loads last until they are given up.
type keyedBackend struct {
	echo
	// calls are the waiting calls under way, began is told of each, and late is set if one is under way
	// when its session closes.
	calls atomic.Int32
	began chan struct{}
	late  atomic.Bool
	// answerBytes is the size of a load's answer, 1 if it is 0.
	answerBytes int
}

func (b *keyedBackend) OpenWorker(context.Context, Peer, *connector.Manifest, int) (Worker, error) {
	return &keyedWorker{b: b}, nil
}

type keyedWorker struct {
	Worker
	b *keyedBackend
}

func (w *keyedWorker) FetchWait(ctx context.Context, m *connector.KeyedMove) (connector.FetchResult, error) {
	w.b.calls.Add(1)
	defer w.b.calls.Add(-1)
	w.b.began <- struct{}{}
	select {
	case <-ctx.Done():
	case <-time.After(m.Wait):
	}
	done := make([]byte, max(1, w.b.answerBytes))
	done[0] = 1
	return connector.FetchResult{Done: [][]byte{done}}, nil
}

func (w *keyedWorker) PutWait(context.Context, *connector.KeyedMove) (connector.PutResult, error) {
	return connector.PutResult{Done: [][]byte{{2}}}, nil
}

func (w *keyedWorker) Put(context.Context, *connector.KeyedMove) error { return nil }

func (w *keyedWorker) Fetch(context.Context, *connector.KeyedMove) error { return nil }

func (w *keyedWorker) Poll(context.Context) (connector.Polled, error) { return connector.Polled{}, nil }

func (w *keyedWorker) Cancel(context.Context, string) error { return nil }

func (w *keyedWorker) Present(_ context.Context, m *connector.PresentRequest, bits [][]byte) ([][]byte, error) {
	return append(bits[:0], []byte{byte(len(m.Hashes))}), nil
}

func (w *keyedWorker) Touch(context.Context, *connector.TouchRequest) error { return nil }

func (w *keyedWorker) Close() {
	if w.b.calls.Load() > 0 {
		w.b.late.Store(true)
	}
	w.b.echo.Close()
}

func startKeyed(t *testing.T) (*keyedBackend, *Server, string) {
	t.Helper()
	b := &keyedBackend{echo: echo{closed: make(chan struct{}, 256)}, began: make(chan struct{}, 64)}
	s, socket := start(t, Options{LoadTimeout: time.Hour}, b)
	return b, s, socket
}

func keyedHello() *wire.Hello {
	b := manifests.New(func(m *connector.Manifest) { m.KeyScheme = connector.KeySchemeEngine }).Canonical()
	return &wire.Hello{MinVersion: wire.MinKeyedVersion, MaxVersion: wire.MaxVersion, Role: wire.RoleWorker, Client: "test", Engine: "e", Manifest: b}
}

// openSession returns the first connection of a session, and the hello of its channels.
func openSession(t *testing.T, socket string) (*wire.Conn, *wire.Hello) {
	t.Helper()
	_, conn := dial(t, socket)
	f := greet(t, conn, keyedHello())
	var reply wire.HelloReply
	if err := reply.Decode(f.Body); err != nil || f.Kind != wire.KindReply || len(reply.Session) != wire.SessionIDBytes {
		t.Fatalf("%+v, %v", reply, err)
	}
	return conn, &wire.Hello{
		MinVersion: wire.MinChannelVersion, MaxVersion: wire.MaxVersion, Role: wire.RoleChannel, Client: "test", Engine: "e",
		Session: slices.Clone(reply.Session),
	}
}

func openTo(t *testing.T, socket string, h *wire.Hello) *wire.Conn {
	t.Helper()
	_, conn := dial(t, socket)
	if f := greet(t, conn, h); f.Kind != wire.KindReply {
		var body wire.ErrorBody
		_ = body.Decode(f.Body)
		t.Fatalf("%+v %+v", f.Header, body)
	}
	return conn
}

func send(t *testing.T, conn *wire.Conn, op wire.Op, body []byte) {
	t.Helper()
	if err := conn.Write(wire.Header{ID: 5, Op: op}, func(b []byte) []byte { return append(b, body...) }); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, conn *wire.Conn, op wire.Op, body []byte) wire.Frame {
	t.Helper()
	send(t, conn, op, body)
	f, err := conn.Read()
	if err != nil {
		t.Fatalf("%s: %v", op, err)
	}
	return f
}

func moveOf(wait time.Duration) []byte {
	return wire.AppendMove(nil, &connector.KeyedMove{ID: "m", Wait: wait, Parts: []connector.KeyedPart{{Hashes: make([]connector.Proof, 1), Slots: make([]uint32, 1)}}})
}

// A call that waits on one connection of a session holds up no other.
func TestChannelsAnswerBesideACallThatWaits(t *testing.T) {
	b, _, socket := startKeyed(t)
	first, h := openSession(t, socket)
	h.Manifest = keyedHello().Manifest // it may be said again
	loads, asks := openTo(t, socket, h), openTo(t, socket, h)
	send(t, loads, wire.OpFetch, moveOf(time.Hour))
	<-b.began
	for range 3 {
		f := ask(t, asks, wire.OpPresent, wire.AppendPresent(nil, &connector.PresentRequest{Hashes: make([]connector.Proof, 3)}))
		if got, err := wire.DecodePresence(f.Body); err != nil || len(got) != 1 || got[0][0] != 3 {
			t.Errorf("%v, %v", got, err)
		}
	}
	for op, body := range map[wire.Op][]byte{
		wire.OpTouch: wire.AppendTouch(nil, new(connector.TouchRequest)), wire.OpCancel: wire.AppendCancel(nil, "x"),
		wire.OpFetch: moveOf(0), wire.OpPut: moveOf(time.Second),
	} {
		if f := ask(t, asks, op, body); f.Kind != wire.KindReply {
			t.Errorf("%s: %+v", op, f.Header)
		}
	}
	if f := ask(t, first, wire.OpPoll, wire.AppendEmpty(nil)); f.Kind != wire.KindReply {
		t.Errorf("%+v", f.Header)
	}
	f := ask(t, asks, wire.OpFetch, moveOf(time.Millisecond))
	if got, err := wire.DecodeFetched(f.Body); err != nil || len(got.Done) != 1 || got.Done[0][0] != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	// The first connection may wait as well, and goes on afterwards.
	for range 2 {
		f = ask(t, first, wire.OpFetch, moveOf(time.Millisecond))
		if got, err := wire.DecodeFetched(f.Body); err != nil || len(got.Done) != 1 {
			t.Errorf("%+v, %v", got, err)
		}
	}
	f = ask(t, asks, wire.OpPut, moveOf(2*time.Hour))
	wantError(t, &f, wire.CodeBadRequest)
}

// The session is closed once no call of its channels is under way, and the channels with it.
func TestChannelsEndWithTheirSession(t *testing.T) {
	b, s, socket := startKeyed(t)
	first, h := openSession(t, socket)
	channels := []*wire.Conn{openTo(t, socket, h), openTo(t, socket, h)}
	send(t, channels[0], wire.OpFetch, moveOf(time.Hour))
	<-b.began
	_ = first.Close()
	<-b.closed
	if b.late.Load() {
		t.Error("the session was closed beside a call")
	}
	for _, c := range channels {
		for {
			if _, err := c.Read(); err != nil { // the answer may still come
				break
			}
		}
	}
	for s.Stats().Connections > 0 {
		time.Sleep(time.Millisecond)
	}
	_, conn := dial(t, socket)
	f := greet(t, conn, h)
	wantError(t, &f, wire.CodeBadRequest)
	wantClosed(t, conn)
}

// A channel that ends takes its call along, and nothing else.
func TestChannelEndsItsOwnCall(t *testing.T) {
	b, _, socket := startKeyed(t)
	_, h := openSession(t, socket)
	one, other := openTo(t, socket, h), openTo(t, socket, h)
	for _, c := range []*wire.Conn{one, other} {
		send(t, c, wire.OpFetch, moveOf(time.Hour))
		<-b.began
	}
	_ = one.Close()
	for b.calls.Load() != 1 {
		time.Sleep(time.Millisecond)
	}
	openTo(t, socket, h) // the session goes on
}

// A channel that ends takes its call along even if it has sent another request after it.
func TestChannelEndsItsOwnCallBeforeItsNextOne(t *testing.T) {
	b, _, socket := startKeyed(t)
	_, h := openSession(t, socket)
	c := openTo(t, socket, h)
	send(t, c, wire.OpFetch, moveOf(time.Hour))
	<-b.began
	send(t, c, wire.OpPresent, wire.AppendPresent(nil, &connector.PresentRequest{Hashes: make([]connector.Proof, 3)}))
	_ = c.Close()
	for b.calls.Load() != 0 {
		time.Sleep(time.Millisecond)
	}
}

// A client that reads none of its answers does not hold up the end of its session.
func TestAnswersThatNobodyReadsDoNotOutliveTheSession(t *testing.T) {
	b := &keyedBackend{echo: echo{closed: make(chan struct{}, 256)}, began: make(chan struct{}, 64), answerBytes: 4 << 20}
	_, socket := start(t, Options{LoadTimeout: time.Hour, WriteTimeout: time.Hour}, b)
	first, h := openSession(t, socket)
	c := openTo(t, socket, h)
	send(t, c, wire.OpFetch, moveOf(time.Hour))
	<-b.began
	_ = first.Close()
	<-b.closed
}

func TestChannelsThatCannotBeAreRefused(t *testing.T) {
	_, _, socket := startKeyed(t)
	_, h := openSession(t, socket)
	other := manifests.New(func(m *connector.Manifest) { m.KeyScheme, m.Model = connector.KeySchemeEngine, "other" }).Canonical()
	for name, change := range map[string]func(h *wire.Hello){
		"an unknown session":      func(h *wire.Hello) { h.Session[0]++ },
		"no session":              func(h *wire.Hello) { h.Session = nil },
		"a short name":            func(h *wire.Hello) { h.Session = h.Session[:8] },
		"another engine":          func(h *wire.Hello) { h.Engine = "f" },
		"another rank":            func(h *wire.Hello) { h.Rank = 1 },
		"another manifest":        func(h *wire.Hello) { h.Manifest = other },
		"a manifest that is none": func(h *wire.Hello) { h.Manifest = []byte("{") },
	} {
		x := *h
		x.Session = slices.Clone(h.Session)
		change(&x)
		_, conn := dial(t, socket)
		f := greet(t, conn, &x)
		t.Log(name)
		wantError(t, &f, wire.CodeBadRequest)
		wantClosed(t, conn)
	}
	old := *h
	old.MinVersion, old.MaxVersion = wire.MinKeyedVersion, wire.MinKeyedVersion
	_, conn := dial(t, socket)
	f := greet(t, conn, &old)
	wantError(t, &f, wire.CodeVersion)
	for range maxChannels {
		openTo(t, socket, h)
	}
	_, conn = dial(t, socket)
	f = greet(t, conn, h)
	wantError(t, &f, wire.CodeBadRequest)
}

// What belongs to the session's first connection is not for its channels.
func TestChannelsCannotRegister(t *testing.T) {
	_, _, socket := startKeyed(t)
	_, h := openSession(t, socket)
	for _, op := range []wire.Op{wire.OpRegister, wire.OpUnregister, wire.OpLoad, wire.OpSave, wire.OpPoll, wire.OpMatch} {
		conn := openTo(t, socket, h)
		f := ask(t, conn, op, wire.AppendEmpty(nil))
		wantError(t, &f, wire.CodeProtocol)
		wantClosed(t, conn)
	}
}

// A client of an older version gets no session, and its calls do not wait.
func TestOlderClientsDoNotWait(t *testing.T) {
	_, _, socket := startKeyed(t)
	h := keyedHello()
	h.MaxVersion = wire.MinKeyedVersion
	_, conn := dial(t, socket)
	f := greet(t, conn, h)
	var reply wire.HelloReply
	if err := reply.Decode(f.Body); err != nil || reply.Session != nil {
		t.Errorf("%+v, %v", reply, err)
	}
	f = ask(t, conn, wire.OpFetch, moveOf(time.Hour))
	if string(f.Body) != string(wire.AppendEmpty(nil)) {
		t.Errorf("%x", f.Body)
	}
}
