package feed

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/prefix"
)

// ownEngine is an engine's publisher made of package zmtp.
type ownEngine struct {
	pub     *zmtp.Publisher
	history *zmtp.History
	replay  *zmtp.ReplayServer
}

// listen opens an endpoint in a directory of the test: once closed, nobody else gets it.
func listen(t testing.TB) net.Listener { return listenAt(t, "ipc://"+t.TempDir()+"/socket") }

func listenAt(t testing.TB, endpoint string) net.Listener {
	t.Helper()
	l, err := zmtp.Listen(context.Background(), endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// closedEndpoint is an endpoint where nobody listens.
func closedEndpoint(t testing.TB) string { return "ipc://" + t.TempDir() + "/socket" }

func endpointOf(a net.Addr) string {
	if a.Network() == "unix" {
		return "ipc://" + a.String()
	}
	return "tcp://" + a.String()
}

func startOwn(t testing.TB, pub, replay net.Listener) *ownEngine {
	t.Helper()
	e := &ownEngine{history: zmtp.NewHistory(), pub: zmtp.NewPublisher(pub, slog.New(slog.DiscardHandler))}
	e.replay = zmtp.NewReplayServer(replay, e.history, slog.New(slog.DiscardHandler))
	background(t, e.pub.Run)
	background(t, e.replay.Run)
	return e
}

func (e *ownEngine) publish(events ...[]byte) (seq int64) {
	b := eventBatch(events...)
	n := e.history.Append([]byte("kv"), b)
	e.pub.Publish([]byte("kv"), seqFrame(n), b)
	return int64(n)
}

func (e *ownEngine) options() RankOptions {
	o := RankOptions{
		Endpoint: endpointOf(e.pub.Addr()), Holder: 1, BlockSize: blocksize.Of(testBlockSize),
		ReconnectMin: time.Millisecond, ReconnectMax: 20 * time.Millisecond, RecoverInterval: time.Millisecond, VoteGrace: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if e.replay != nil {
		o.ReplayEndpoint = endpointOf(e.replay.Addr())
	}
	return o
}

// A replay endpoint that comes late, or back, makes a rank whole.
func TestAReplayThatFailedIsTriedAgain(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	e.publish(storedEvent(0, []uint64{1}))
	o := e.options()
	o.ReplayEndpoint = closedEndpoint(t)
	x := newMemIndex()
	f := follow(t, o, x)
	wait.For(t, "a failed replay", func() bool { return f.Stats().ReplayFailures > 0 })
	wait.For(t, "a batch", func() bool {
		e.publish(storedEvent(0, []uint64{2}))
		return f.Stats().Batches > 0
	})
	if s := f.Stats(); s.State != StateStale {
		t.Errorf("%+v", s)
	}
	replay := zmtp.NewReplayServer(listenAt(t, o.ReplayEndpoint), e.history, slog.New(slog.DiscardHandler))
	background(t, replay.Run)
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	wantKeys(t, x, 1, append(keysOf(connector.Scope{}, 1), keysOf(connector.Scope{}, 2)...)...)
}

// heldIndex keeps its callers waiting until it is opened.
type heldIndex struct {
	*memIndex
	entered chan struct{} // one for each call that waits
	open    chan struct{}
}

func (x *heldIndex) Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error {
	select {
	case x.entered <- struct{}{}:
	default:
	}
	<-x.open
	return x.memIndex.Stored(h, parent, hasParent, ids, keys)
}

func TestAnOverflowingQueueIsMadeUpFor(t *testing.T) {
	t.Run("batches", func(t *testing.T) { overflow(t, func(o *RankOptions) { o.QueueBatches = 2 }) })
	t.Run("bytes", func(t *testing.T) { overflow(t, func(o *RankOptions) { o.QueueBytes = 2000 }) })
}

func overflow(t *testing.T, bound func(*RankOptions)) {
	e := startOwn(t, listen(t), listen(t))
	x := &heldIndex{memIndex: newMemIndex(), entered: make(chan struct{}, 1), open: make(chan struct{})}
	o := e.options()
	bound(&o)
	f := follow(t, o, x)
	open := sync.OnceFunc(func() { close(x.open) })
	t.Cleanup(open)
	var n uint64
	var last int64
	publish := func() {
		n++
		last = e.publish(storedEvent(n-1, []uint64{n}))
	}
	// Again and again: a subscriber is connected a little before its subscription has arrived.
	wait.For(t, "a busy index", func() bool {
		publish()
		select {
		case <-x.entered:
			return true
		default:
			return false
		}
	})
	wait.For(t, "an overflow", func() bool { publish(); return f.Stats().Overflows > 0 })
	open()
	var blocks []uint64
	for i := range n {
		blocks = append(blocks, i+1)
	}
	if s := waitSeq(t, f, last); s.Replays == 0 {
		t.Errorf("%+v", s)
	}
	wait.For(t, "a synced rank", func() bool { return f.Stats().State == StateSynced })
	wantKeys(t, x.memIndex, 1, keysOf(connector.Scope{}, blocks...)...)
}

// A rank is at the endpoints' port plus its number.
func TestEveryRankHasAPort(t *testing.T) {
	e := startOwn(t, listenAt(t, "tcp://127.0.0.1:0"), listenAt(t, "tcp://127.0.0.1:0"))
	below := func(a net.Addr) string {
		host, port, err := net.SplitHostPort(a.String())
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n-3))
	}
	x := newMemIndex()
	o := e.options()
	o.Number, o.Endpoint, o.ReplayEndpoint = 3, below(e.pub.Addr()), below(e.replay.Addr())
	seq := e.publish(storedEvent(0, []uint64{1, 2}))
	f := follow(t, o, x)
	if s := waitSeq(t, f, seq); s.Rank != 3 || s.ReplayedBatches != 1 {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
}

// An engine whose endpoint names another machine connects instead of binding.
func TestAnEngineMayBeTheOneThatConnects(t *testing.T) {
	endpoint := closedEndpoint(t)
	x := newMemIndex()
	follow(t, RankOptions{
		Endpoint: endpoint, Bind: true, Holder: 1, BlockSize: blocksize.Of(testBlockSize), Logger: slog.New(slog.DiscardHandler),
	}, x)
	var engine net.Conn
	wait.For(t, "the endpoint", func() (ok bool) {
		var err error
		engine, err = net.Dial("unix", strings.TrimPrefix(endpoint, "ipc://"))
		return err == nil
	})
	defer engine.Close() // which costs what is known: there is no replay
	greeting := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, make([]byte, 48)...)
	ready := append([]byte{4, 25, 5}, "READY\x0bSocket-Type\x00\x00\x00\x03PUB"...)
	batch := eventBatch(storedEvent(0, []uint64{1}))
	if _, err := engine.Write(zmtp.AppendMessage(append(greeting, ready...), []byte("kv"), seqFrame(0), batch)); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the block", func() bool { return len(x.keys(1)) > 0 })
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}

func TestMessagesOfAnotherShapeAreCounted(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	x := newMemIndex()
	f := follow(t, e.options(), x)
	wait.For(t, "bad frames", func() bool {
		e.pub.Publish([]byte("kv"), []byte("x"))
		return f.Stats().BadFrames > 0
	})
	seq := e.publish(storedEvent(0, []uint64{1}))
	// Synced, too: each bad frame has the rank rebuilt, if not at once.
	wait.For(t, "a rank that is rebuilt", func() bool {
		s := f.Stats()
		return s.LastSeq == seq && s.State == StateSynced
	})
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}

// The real feed fills the real index.
func TestTheIndexFindsWhatAnEngineStored(t *testing.T) {
	e := startOwn(t, listen(t), listen(t))
	x, err := prefix.New(prefix.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := x.AddHolder("engine")
	if err != nil {
		t.Fatal(err)
	}
	o := e.options()
	o.Holder = h
	f := follow(t, o, x)
	e.publish(storedEvent(0, []uint64{1, 2, 3}))
	seq := e.publish(removedEvent(3), storedEvent(2, []uint64{4}))
	// What comes before the subscription has arrived shows by the number of a later batch only.
	wait.For(t, "both batches", func() bool { e.publish(); return f.Stats().LastSeq >= seq })
	if n := x.HolderBlocks(h); n != 3 {
		t.Errorf("%d blocks", n)
	}
	if k, ok := x.ParentKey(h, 4); !ok || k != keysOf(connector.Scope{}, 1, 2, 4)[2] {
		t.Errorf("%v %v", k, ok)
	}
}

func TestRankOptionsAreChecked(t *testing.T) {
	good := RankOptions{Endpoint: "tcp://h:5557", Holder: 1, BlockSize: blocksize.Of(16)}
	for name, spoil := range map[string]func(*RankOptions){
		"no endpoint":        func(o *RankOptions) { o.Endpoint = "" },
		"no port for a rank": func(o *RankOptions) { o.Number = 65535 },
		"no replay port":     func(o *RankOptions) { o.ReplayEndpoint = "tcp://h" },
		"no block size":      func(o *RankOptions) { o.BlockSize = nil },
		"a queue of nothing": func(o *RankOptions) { o.QueueBatches = -1 },
	} {
		o := good
		spoil(&o)
		if _, err := NewRank(o, newMemIndex()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := NewRank(good, newMemIndex()); err != nil {
		t.Error(err)
	}
}
