package feed

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/blocksize"
)

// doubtful is an engine that publishes what a test says under the numbers that it says, and replays a history of its own.
type doubtful struct {
	*ownEngine
	t    *testing.T
	rank *Rank
	x    *memIndex
}

// newDoubtful makes one whose replays come over the listener; nil is none.
func newDoubtful(t *testing.T, replay net.Listener) *doubtful {
	t.Helper()
	e := &ownEngine{history: zmtp.NewHistory(), pub: zmtp.NewPublisher(listen(t), slog.New(slog.DiscardHandler))}
	background(t, e.pub.Run)
	if replay != nil {
		e.replay = zmtp.NewReplayServer(replay, e.history, slog.New(slog.DiscardHandler))
		background(t, e.replay.Run)
	}
	return &doubtful{ownEngine: e, t: t, x: newMemIndex()}
}

// followDoubtful makes one and follows it.
func followDoubtful(t *testing.T, replay net.Listener, change func(*RankOptions)) *doubtful {
	t.Helper()
	d := newDoubtful(t, replay)
	o := d.options()
	if change != nil {
		change(&o)
	}
	d.rank = follow(t, o, d.x)
	return d
}

// first publishes the first batch until it is heard: a subscription takes effect some time after the connection.
func (d *doubtful) first(seq uint64, batch []byte) {
	d.t.Helper()
	wait.For(d.t, "the first batch", func() bool {
		d.pub.Publish([]byte("kv"), seqFrame(seq), batch)
		s := d.rank.Stats()
		return s.LastSeq == int64(seq) || s.Duplicates > 0
	})
}

// publish publishes a batch, without adding it to the history.
func (d *doubtful) publish(seq uint64, events ...[]byte) {
	d.pub.Publish([]byte("kv"), seqFrame(seq), eventBatch(events...))
}

func (d *doubtful) heard(seq int64) RankStats {
	d.t.Helper()
	return waitSeq(d.t, d.rank, seq)
}

// again waits until another few replays have failed.
func (d *doubtful) again() RankStats {
	d.t.Helper()
	n := d.rank.Stats().ReplayFailures
	wait.For(d.t, "replays that fail", func() bool { return d.rank.Stats().ReplayFailures >= n+3 })
	return d.rank.Stats()
}

func blocks(n ...uint64) []connector.Key { return keysOf(connector.Scope{}, n...) }

// Whoever joins late does not know the parents of many blocks; no replay would tell.
func TestParentsFromBeforeAreNoReasonForARebuild(t *testing.T) {
	d := followDoubtful(t, nil, func(o *RankOptions) { o.UnknownParentsMax = 3 })
	d.first(7, eventBatch(storedEvent(0, []uint64{1})))
	for n := range uint64(64) {
		d.publish(8+n, storedEvent(1000, []uint64{2000 + n}))
	}
	if s := d.heard(71); s.UnknownParents != 64 || s.Resyncs != 0 || s.State != StatePartial || s.Error != "" {
		t.Errorf("%+v", s)
	}
	wantKeys(t, d.x, 1, blocks(1)...)
}

// An engine that keeps no batches for replays is one without replays: what was learnt since a gap stays.
func TestAnEmptyReplayCostsNothingThatIsKnown(t *testing.T) {
	d := followDoubtful(t, listen(t), nil)
	d.first(0, eventBatch(storedEvent(0, []uint64{1})))
	d.publish(5, storedEvent(0, []uint64{2})) // a gap
	s := d.heard(5)
	wantKeys(t, d.x, 1, blocks(2)...)
	after := d.again()
	if after.Resyncs != s.Resyncs || after.State != StateStale || !strings.Contains(after.Error, "ended before a batch that was heard") {
		t.Errorf("before %+v\nafter %+v", s, after)
	}
	wantKeys(t, d.x, 1, blocks(2)...)
}

// A replay that lacks the last batches would bring blocks back that were removed in them.
func TestAReplayThatLacksWhatWasHeardIsNotBelieved(t *testing.T) {
	d := followDoubtful(t, listen(t), func(o *RankOptions) { o.UnknownParentsMax = 1 })
	first := eventBatch(storedEvent(0, []uint64{1}))
	d.history.Append([]byte("kv"), first)
	d.first(0, first)
	d.publish(1, storedEvent(0, []uint64{2}), removedEvent(1))
	d.publish(2, storedEvent(77, []uint64{78})) // has the rank rebuilt
	s := d.again()
	if s.State != StateStale || !strings.Contains(s.Error, "ended before a batch that was heard") {
		t.Errorf("%+v", s)
	}
	wantKeys(t, d.x, 1)
	d.publish(3, storedEvent(0, []uint64{3}))
	d.heard(3)
	wantKeys(t, d.x, 1, blocks(3)...)
}

func TestAReplayOfAnotherEngineIsNotBelieved(t *testing.T) {
	for _, heard := range []bool{true, false} {
		d := followDoubtful(t, listen(t), nil)
		if heard {
			d.first(0, eventBatch(storedEvent(0, []uint64{1})))
		}
		wait.For(t, "a synced rank", func() bool { return d.rank.Stats().State == StateSynced })
		for n := range uint64(10) { // those of another engine
			d.history.Append([]byte("kv"), eventBatch(storedEvent(0, []uint64{100 + n})))
		}
		d.first(5, eventBatch(storedEvent(0, []uint64{2}))) // a gap
		if s := d.again(); s.State != StateStale || !strings.Contains(s.Error, "another engine's") {
			t.Errorf("heard before: %t: %+v", heard, s)
		}
		d.publish(6, storedEvent(0, []uint64{3}))
		d.heard(6)
		d.again()
		wantKeys(t, d.x, 1, append(blocks(2), blocks(3)...)...)
	}
}

// At a connection nothing is heard yet that a replay could be compared with. It is, with what comes.
func TestAReplayOfAnotherEngineIsNotBelievedForLong(t *testing.T) {
	d := newDoubtful(t, listen(t))
	for n := range uint64(10) {
		d.history.Append([]byte("kv"), eventBatch(storedEvent(0, []uint64{100 + n})))
	}
	d.rank = follow(t, d.options(), d.x)
	d.heard(9)
	d.first(3, eventBatch(storedEvent(0, []uint64{1})))
	d.publish(4, storedEvent(0, []uint64{2}))
	d.publish(5, storedEvent(0, []uint64{3}))
	d.heard(5)
	if s := d.again(); s.State != StateStale || !strings.Contains(s.Error, "another engine's") {
		t.Errorf("%+v", s)
	}
	wantKeys(t, d.x, 1, append(append(blocks(1), blocks(2)...), blocks(3)...)...)
}

// limitedListener has connections that end, or stop, after some writes.
type limitedListener struct {
	net.Listener
	writes atomic.Int64 // still allowed on each connection
	last   atomic.Value // bytes; what has them is the last write
	wait   chan struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &limitedConn{Conn: c, of: l, left: l.writes.Load()}, err
}

type limitedConn struct {
	net.Conn
	of   *limitedListener
	left int64
}

func (c *limitedConn) Write(b []byte) (int, error) {
	if c.left--; c.left < 0 {
		if c.of.wait != nil {
			<-c.of.wait
		}
		return 0, net.ErrClosed
	}
	if last, _ := c.of.last.Load().([]byte); len(last) > 0 && bytes.Contains(b, last) {
		c.left = 0
	}
	return c.Conn.Write(b)
}

// What a part of a replay says is not how things are: blocks that the rest removes would count as held.
func TestAReplayThatBreaksOffLeavesNothing(t *testing.T) {
	l := &limitedListener{Listener: listen(t)}
	l.writes.Store(1 << 20)
	d := followDoubtful(t, l, func(o *RankOptions) { o.UnknownParentsMax = 1 })
	seq := uint64(0)
	say := func(events ...[]byte) {
		b := eventBatch(events...)
		seq = d.history.Append([]byte("kv"), b)
		d.pub.Publish([]byte("kv"), seqFrame(seq), b)
	}
	first := eventBatch(storedEvent(0, []uint64{1}))
	d.history.Append([]byte("kv"), first)
	d.first(0, first)
	middle := storedEvent(0, []uint64{2})
	say(middle)
	say(removedEvent(1))
	say(storedEvent(0, []uint64{5000}))
	d.heard(int64(seq))
	held := append(blocks(2), blocks(5000)...)
	wantKeys(t, d.x, 1, held...)
	l.last.Store(middle)
	say(storedEvent(77, []uint64{78})) // has the rank rebuilt
	if s := d.again(); s.State != StateStale || s.ReplayedBatches == 0 {
		t.Errorf("%+v", s)
	}
	wait.For(t, "that nothing is held", func() bool { return len(d.x.keys(1)) == 0 })
	l.last.Store([]byte(nil))
	wait.For(t, "a synced rank", func() bool { return d.rank.Stats().State == StateSynced })
	wantKeys(t, d.x, 1, held...)
}

// Engines drop batches of a replay that is not read as fast as it is sent, and connections break. What is missing is asked for
// again, without beginning again.
func TestAReplayGoesOnWhereItBrokeOff(t *testing.T) {
	l := &limitedListener{Listener: listen(t)}
	l.writes.Store(20) // a handshake takes some
	d := followDoubtful(t, l, nil)
	var last []byte
	for n := range uint64(200) {
		last = eventBatch(storedEvent(0, []uint64{n + 1}))
		d.history.Append([]byte("kv"), last)
	}
	d.first(199, last)
	wait.For(t, "a synced rank", func() bool { s := d.rank.Stats(); return s.State == StateSynced && s.LastSeq == 199 })
	if s := d.rank.Stats(); s.ReplayFailures != 0 || s.ReplayedBatches != 200 {
		t.Errorf("%+v", s)
	}
}

func TestAReplayThatNeverEndsIsGivenUp(t *testing.T) {
	l := &limitedListener{Listener: listen(t), wait: make(chan struct{})}
	d := followDoubtful(t, l, func(o *RankOptions) { o.ReplayMax = 50 * time.Millisecond })
	t.Cleanup(func() { close(l.wait) }) // before the server ends, which waits for its connections
	var last []byte
	for n := range uint64(101) {
		last = eventBatch(storedEvent(0, []uint64{n + 1}))
		d.history.Append([]byte("kv"), last)
	}
	l.writes.Store(20) // more than a handshake
	d.first(100, last)
	if s := d.again(); s.State != StateStale || !strings.Contains(s.Error, "timeout") && !strings.Contains(s.Error, "deadline exceeded") || s.ReplayedBatches == 0 {
		t.Errorf("%+v", s)
	}
}

// An engine whose batches nobody understands fills no log, with replays or without; nor does one that numbers them in leaps.
func TestBadStreamsDoNotFillTheLog(t *testing.T) {
	for name, replay := range map[string]net.Listener{"with replays": listen(t), "without": nil, "of another size": nil} {
		var log testlog.Text
		logged := func(o *RankOptions) {
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			if name == "of another size" {
				o.BlockSize = blocksize.Of(2 * testBlockSize)
			}
		}
		d := followDoubtful(t, replay, logged)
		d.first(0, eventBatch(storedEvent(0, []uint64{1})))
		for n := range uint64(1000) {
			if n%2 == 0 {
				d.pub.Publish([]byte("kv"), seqFrame(2*n+2), []byte{0x93, 0xc0})
			} else {
				d.publish(2*n+2, storedEvent(0, []uint64{n}))
			}
		}
		wait.For(t, "the batches", func() bool { s := d.rank.Stats(); return s.Malformed+s.MismatchedBlockSize >= 400 })
		kinds := make(map[string]int)
		for _, line := range lines(&log) {
			if _, text, found := strings.Cut(line, "msg="); found {
				kinds[text[:min(40, len(text))]]++
			}
		}
		for kind, n := range kinds {
			if n > 10 {
				t.Errorf("%s: %d lines of %s", name, n, kind)
			}
		}
	}
}

// Nobody asks for replays of an engine that is gone.
func TestARankWithoutAConnectionIsNotRepaired(t *testing.T) {
	one := startProcess(t, listen(t))
	o := (&ownEngine{pub: one.pub}).options()
	o.ReplayEndpoint = closedEndpoint(t)
	f := follow(t, o, newMemIndex())
	wait.For(t, "a failed replay", func() bool { return f.Stats().ReplayFailures > 0 })
	one.stop()
	wait.For(t, "that the connection is lost", func() bool { s := f.Stats(); return s.State == StateConnecting && !s.Connected })
	time.Sleep(20 * time.Millisecond) // one may be under way
	before := f.Stats().ReplayFailures
	time.Sleep(100 * time.Millisecond)
	if after := f.Stats(); after.ReplayFailures != before || after.Error == "" {
		t.Errorf("%d replays failed before, %+v", before, after)
	}
}

// An engine that was started again on the same connection, or two on one endpoint, have the rank rebuilt ever more rarely.
func TestNumbersThatBeginAgainAndAgainAreReplayedRarely(t *testing.T) {
	d := followDoubtful(t, listen(t), func(o *RankOptions) { o.RecoverInterval = 20 * time.Millisecond })
	var batches [400][]byte
	for n := range batches {
		batches[n] = eventBatch(storedEvent(0, []uint64{uint64(n)}))
		d.history.Append([]byte("kv"), batches[n])
	}
	d.first(0, batches[0])
	for n := range uint64(200) {
		for _, seq := range []uint64{200 + n, n} {
			d.pub.Publish([]byte("kv"), seqFrame(seq), batches[seq])
		}
		time.Sleep(time.Millisecond)
	}
	wait.For(t, "most of what was published", func() bool { return d.rank.Stats().Restarts >= 150 })
	if s := d.rank.Stats(); s.Replays == 0 || s.Replays > 20 {
		t.Errorf("%+v", s)
	}
}

// An engine that shows to be the same process, and then breaks off, may have removed anything since.
func TestAReplayThatBreaksOffAfterTheLastBatchLeavesNothing(t *testing.T) {
	l := &limitedListener{Listener: listen(t)}
	l.writes.Store(1 << 20)
	history := zmtp.NewHistory()
	replay := zmtp.NewReplayServer(l, history, slog.New(slog.DiscardHandler))
	background(t, replay.Run)
	one := startProcess(t, listen(t))
	x := newMemIndex()
	o := (&ownEngine{pub: one.pub, replay: replay}).options()
	o.RecoverInterval = 200 * time.Millisecond // before the next replay
	f := follow(t, o, x)
	first := eventBatch(storedEvent(0, []uint64{1}))
	history.Append([]byte("kv"), first)
	wait.For(t, "the first batch", func() bool {
		one.pub.Publish([]byte("kv"), seqFrame(0), first)
		return f.Stats().LastSeq == 0
	})
	l.last.Store(first)
	one.stop()
	history.Append([]byte("kv"), eventBatch(removedEvent(1)))
	failures := f.Stats().ReplayFailures
	one.again()
	wait.For(t, "a failed replay", func() bool { return f.Stats().ReplayFailures > failures })
	wantKeys(t, x, 1)
	if s := f.Stats(); s.State == StateSynced {
		t.Errorf("%+v", s)
	}
}

// seldom has a rank repaired at once and then not for the rest of a test.
func seldom(o *RankOptions) { o.RecoverInterval = time.Hour }

// What was wrong with blocks that are forgotten is wrong with nothing.
func TestWhatIsForgottenNeedsNoRebuild(t *testing.T) {
	d := followDoubtful(t, nil, seldom)
	bad := func() { d.pub.Publish([]byte("kv"), []byte("no number"), nil) }
	d.first(1, eventBatch(storedEvent(0, []uint64{5})))
	bad() // forgotten at once
	wait.For(t, "that the rank is forgotten", func() bool { return d.rank.Stats().Resyncs == 1 })
	d.publish(2, storedEvent(0, []uint64{1}))
	d.heard(2)
	bad() // not so soon again
	wait.For(t, "that it is to be forgotten", func() bool { s := d.rank.Stats(); return s.State == StateStale && s.Error != "" })
	d.publish(7, storedEvent(0, []uint64{2})) // a gap
	if s := d.heard(7); s.State != StatePartial || s.Error != "" {
		t.Errorf("%+v", s)
	}
	wantKeys(t, d.x, 1, blocks(2)...)
}

// An engine's first batch leaves nothing for a replay to bring.
func TestTheFirstBatchNeedsNoReplay(t *testing.T) {
	d := followDoubtful(t, nil, func(o *RankOptions) {
		seldom(o)
		o.ReplayEndpoint = closedEndpoint(t)
	})
	wait.For(t, "a failed replay", func() bool { s := d.rank.Stats(); return s.ReplayFailures > 0 && s.State == StateStale })
	d.first(0, eventBatch(storedEvent(0, []uint64{1})))
	if s := d.heard(0); s.State != StateSynced || s.Error != "" {
		t.Errorf("%+v", s)
	}
}
