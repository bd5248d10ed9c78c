package feed

import (
	"encoding/hex"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/testkit/zmqtest"
	"github.com/kvconn/kvconn/router/blocksize"
)

// libzmqEngine is an engine's publisher in libzmq.
type libzmqEngine struct {
	t        *testing.T
	p        *zmqtest.Program
	endpoint string
	replay   string
}

func startLibzmq(t *testing.T) *libzmqEngine {
	t.Helper()
	t.Parallel() // Python takes its time to start
	p := zmqtest.Start(t, "testdata/libzmq_pub.py")
	ready := p.Line()
	return &libzmqEngine{t: t, p: p, endpoint: "tcp://127.0.0.1:" + ready[1], replay: "tcp://127.0.0.1:" + ready[2]}
}

// do gives a command and waits until it is done.
func (e *libzmqEngine) do(words ...string) {
	e.t.Helper()
	e.p.Send(words...)
	if got := strings.Join(e.p.Line(), " "); got != "done" {
		e.t.Fatal(got)
	}
}

func (e *libzmqEngine) batch(how string, seq int, events ...[]byte) {
	e.t.Helper()
	e.do(how, strconv.Itoa(seq), hex.EncodeToString(eventBatch(events...)))
}

func testRankOptions(e *libzmqEngine, replay bool) RankOptions {
	o := RankOptions{
		Endpoint: e.endpoint, Topic: "kv", Holder: 1, BlockSize: blocksize.Of(testBlockSize),
		ReconnectMin: time.Millisecond, ReconnectMax: 20 * time.Millisecond, RecoverInterval: time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if replay {
		o.ReplayEndpoint = e.replay
	}
	return o
}

func follow(t *testing.T, o RankOptions, x Index) *Rank {
	t.Helper()
	f, err := NewRank(o, x)
	if err != nil {
		t.Fatal(err)
	}
	background(t, f.Run)
	return f
}

// waitSeq waits until the rank has applied batch seq, and returns its statistics.
func waitSeq(t *testing.T, f *Rank, seq int64) RankStats {
	t.Helper()
	wait.For(t, "batch "+strconv.FormatInt(seq, 10), func() bool { return f.Stats().LastSeq == seq })
	return f.Stats()
}

// With a replay endpoint a feed needs no luck: what was published before it subscribed is replayed.
func TestALibzmqEngineIsFollowedFromItsBeginning(t *testing.T) {
	e := startLibzmq(t)
	e.batch("pub", 0, storedEvent(0, []uint64{1, 2}))
	e.batch("pub", 1, storedEvent(2, []uint64{3}))
	x := newMemIndex()
	f := follow(t, testRankOptions(e, true), x)
	if s := waitSeq(t, f, 1); s.State != StateSynced || s.ReplayedBatches != 2 || s.Resyncs != 0 {
		t.Errorf("%+v", s)
	}
	publishUntilHeard(t, e, f, 2)
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2, 3)...)
}

// publishUntilHeard publishes empty batches from seq on until one arrives over the subscription, which a
// publisher may take in after the connection has been made, and the last one is applied. It returns the next number.
func publishUntilHeard(t *testing.T, e *libzmqEngine, f *Rank, seq int) (next int) {
	t.Helper()
	heard := func() uint64 { s := f.Stats(); return s.Batches - s.ReplayedBatches + s.Gaps + s.Duplicates }
	before := heard()
	wait.For(t, "a batch over the subscription", func() bool {
		e.batch("pub", seq)
		seq++
		return heard() > before
	})
	waitSeq(t, f, int64(seq-1))
	return seq
}

func TestAGapIsReplayed(t *testing.T) {
	for _, form := range []string{"new", "old"} {
		t.Run(form, func(t *testing.T) {
			e := startLibzmq(t)
			e.do(form)
			x := newMemIndex()
			f := follow(t, testRankOptions(e, true), x)
			e.batch("pub", 0, storedEvent(0, []uint64{1}))
			n := publishUntilHeard(t, e, f, 1)
			before := f.Stats()
			e.batch("drop", n, storedEvent(1, []uint64{2}))
			e.batch("drop", n+1, removedEvent(1), storedEvent(2, []uint64{3}))
			e.batch("pub", n+2, storedEvent(3, []uint64{4}))
			s := waitSeq(t, f, int64(n+2))
			if s.State != StateSynced || s.Gaps != before.Gaps+1 || s.Replays <= before.Replays || s.Resyncs != before.Resyncs || s.UnknownParents != 0 {
				t.Errorf("%+v", s)
			}
			wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2, 3, 4)[1:]...)
		})
	}
}

func TestAGapWithoutReplayClearsTheRank(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	f := follow(t, testRankOptions(e, false), x)
	n := publishUntilHeard(t, e, f, 0)
	e.batch("pub", n, storedEvent(0, []uint64{1}))
	e.batch("drop", n+1, removedEvent(1))
	e.batch("pub", n+2, storedEvent(0, []uint64{7}))
	s := waitSeq(t, f, int64(n+2))
	if s.State != StatePartial || s.Gaps != 1 || s.Resyncs != 1 {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 7)...)
}

// An engine that was started again counts from 0 and has lost its blocks, whether its numbers are
// lower or higher than those seen before.
func TestARestartedEngineLosesWhatItHeld(t *testing.T) {
	for _, replay := range []bool{true, false} {
		for _, first := range []int{0, 60} {
			t.Run("replay "+strconv.FormatBool(replay)+" from "+strconv.Itoa(first), func(t *testing.T) {
				e := startLibzmq(t)
				x := newMemIndex()
				f := follow(t, testRankOptions(e, replay), x)
				n := publishUntilHeard(t, e, f, 0)
				e.batch("pub", n, storedEvent(0, []uint64{1, 2}))
				waitSeq(t, f, int64(n))
				connects := f.Stats().Connects
				e.do("forget")
				for i := range first { // published while nobody listened
					e.batch("drop", i, storedEvent(0, []uint64{uint64(i) + 1000}))
				}
				e.do("rebind")
				wait.For(t, "a new connection", func() bool { return f.Stats().Connects > connects })
				n = publishUntilHeard(t, e, f, first)
				e.batch("pub", n, storedEvent(0, []uint64{5}))
				s := waitSeq(t, f, int64(n))
				want := keysOf(connector.Scope{}, 5)
				for i := range first {
					if replay {
						want = append(want, keysOf(connector.Scope{}, uint64(i)+1000)...)
					}
				}
				wantKeys(t, x, 1, want...)
				if replay && s.Restarts == 0 || s.Resyncs == 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A connection that broke costs nothing if the engine is still the same process.
func TestALostConnectionIsMadeUpFor(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	f := follow(t, testRankOptions(e, true), x)
	n := publishUntilHeard(t, e, f, 0)
	e.batch("pub", n, storedEvent(0, []uint64{1}))
	waitSeq(t, f, int64(n))
	before := f.Stats()
	e.do("rebind")
	e.batch("drop", n+1, storedEvent(1, []uint64{2}))
	wait.For(t, "a new connection", func() bool { return f.Stats().Connects > before.Connects })
	s := waitSeq(t, f, int64(publishUntilHeard(t, e, f, n+2)-1))
	if s.Resyncs != before.Resyncs || s.Restarts != before.Restarts || s.State != StateSynced {
		t.Errorf("before %+v\nafter %+v", before, s)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
}

// A replay that no longer reaches back far enough leaves a rank that is true and incomplete.
func TestAReplayThatIsTooShortRebuildsTheRank(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	f := follow(t, testRankOptions(e, true), x)
	e.batch("pub", 0, storedEvent(0, []uint64{1}))
	n := publishUntilHeard(t, e, f, 1)
	e.batch("drop", n, removedEvent(1))
	e.do("forget")
	e.batch("drop", n+1, storedEvent(0, []uint64{2}))
	e.batch("pub", n+2, storedEvent(2, []uint64{3}))
	if s := waitSeq(t, f, int64(n+2)); s.State != StatePartial || s.Resyncs == 0 {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 2, 3)...)
}

// slowIndex takes its time, as a large one does.
type slowIndex struct {
	*memIndex
	calls int
}

func (x *slowIndex) Stored(h Holder, parent uint64, hasParent bool, ids []uint64, keys []connector.Key) error {
	if x.calls++; x.calls%10 == 0 {
		time.Sleep(time.Millisecond)
	}
	return x.memIndex.Stored(h, parent, hasParent, ids, keys)
}

// An engine's socket drops batches of a replay that is not read as fast as it is sent: libzmq keeps 1,000 for a peer.
func TestALongReplayIsBroughtWhole(t *testing.T) {
	e := startLibzmq(t)
	const batches = 2500
	large := field("extra", strings.Repeat("x", 5000))
	e.do("fill", strconv.Itoa(batches), hex.EncodeToString(eventBatch(storedEvent(0, []uint64{1}, large))))
	f := follow(t, testRankOptions(e, true), &slowIndex{memIndex: newMemIndex()})
	wait.For(t, "a synced rank", func() bool { s := f.Stats(); return s.State == StateSynced && s.LastSeq == batches-1 })
	if s := f.Stats(); s.ReplayedBatches != batches {
		t.Errorf("it began again: %+v", s)
	}
}

func TestABadBatchCostsWhatWasKnownAndNoMore(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	f := follow(t, testRankOptions(e, true), x)
	n := publishUntilHeard(t, e, f, 0)
	e.batch("pub", n, storedEvent(0, []uint64{1}))
	e.do("pub", strconv.Itoa(n+1), "93c0")
	e.batch("pub", n+2, storedEvent(1, []uint64{2}))
	waitSeq(t, f, int64(n+2))
	e.batch("pub", n+3, storedEvent(0, []uint64{3}))
	if s := waitSeq(t, f, int64(n+3)); s.Malformed != 1 || s.State != StatePartial || s.Resyncs != 1 || s.UnknownParents != 1 {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 3)...)
}

func TestAnotherBlockSizeIsRefusedAloud(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	o := testRankOptions(e, true)
	o.BlockSize = blocksize.Of(2 * testBlockSize)
	f := follow(t, o, x)
	n := publishUntilHeard(t, e, f, 0)
	e.batch("pub", n, storedEvent(0, []uint64{1}))
	wait.For(t, "a refusal", func() bool { return f.Stats().State == StateRefused })
	if s := f.Stats(); s.MismatchedBlockSize != 1 || !strings.Contains(s.Error, "4 tokens, not 8") {
		t.Errorf("%+v", s)
	}
	wantKeys(t, x, 1)
}

func TestUnknownParentsRebuildTheRank(t *testing.T) {
	e := startLibzmq(t)
	x := newMemIndex()
	o := testRankOptions(e, true)
	o.UnknownParentsMax = 3
	f := follow(t, o, x)
	n := publishUntilHeard(t, e, f, 0)
	e.batch("pub", n, storedEvent(0, []uint64{1}))
	e.batch("pub", n+1, storedEvent(90, []uint64{91}), storedEvent(92, []uint64{93}))
	if s := waitSeq(t, f, int64(n+1)); s.UnknownParents != 2 || s.Resyncs != 0 {
		t.Errorf("%+v", s)
	}
	e.batch("pub", n+2, storedEvent(94, []uint64{95}))
	wait.For(t, "a rebuild", func() bool { s := f.Stats(); return s.Resyncs > 0 && s.LastSeq == int64(n+2) })
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1)...)
}
