package feed

import (
	"log/slog"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/internal/zmtp"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/prefix"
)

// process is an engine process that publishes and has no replay.
type process struct {
	t    *testing.T
	pub  *zmtp.Publisher
	stop func()
}

func startProcess(t *testing.T, l net.Listener) *process {
	t.Helper()
	p := &process{t: t, pub: zmtp.NewPublisher(l, slog.New(slog.DiscardHandler))}
	p.stop = background(t, p.pub.Run)
	return p
}

// again starts a process in the place of p, which has stopped.
func (p *process) again() *process {
	p.t.Helper()
	return startProcess(p.t, listenAt(p.t, endpointOf(p.pub.Addr())))
}

// first publishes the process's first batch until it is heard: a subscription takes effect some time after
// the connection.
func (p *process) first(f *Rank, events ...[]byte) {
	p.t.Helper()
	wait.For(p.t, "the first batch", func() bool {
		p.pub.Publish([]byte("kv"), seqFrame(0), eventBatch(events...))
		return f.Stats().LastSeq == 0
	})
}

// Without replays nothing shows that a new connection is to the same process.
func TestALostConnectionWithoutReplayCostsWhatWasKnown(t *testing.T) {
	one := startProcess(t, listen(t))
	x := newMemIndex()
	o := (&ownEngine{pub: one.pub}).options()
	f := follow(t, o, x)
	one.first(f, storedEvent(0, []uint64{1, 2}))
	if s := f.Stats(); s.State != StateSynced {
		t.Errorf("%+v", s)
	}
	one.stop()
	wait.For(t, "that the blocks are forgotten", func() bool { return len(x.keys(1)) == 0 })
	two := one.again()
	wait.For(t, "a new connection, on which nothing was heard", func() bool {
		s := f.Stats()
		return s.Connects == 2 && s.State == StatePartial && s.LastSeq == -1
	})
	two.first(f, storedEvent(0, []uint64{5}))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 5)...)
	if s := f.Stats(); s.State != StateSynced {
		t.Errorf("%+v", s)
	}
}

// A replay that fails on a new connection leaves the same doubt.
func TestALostConnectionWhoseReplayFailsCostsWhatWasKnown(t *testing.T) {
	one := startProcess(t, listen(t))
	replay := zmtp.NewReplayServer(listen(t), zmtp.NewHistory(), slog.New(slog.DiscardHandler))
	stopReplay := background(t, replay.Run)
	x := newMemIndex()
	f := follow(t, (&ownEngine{pub: one.pub, replay: replay}).options(), x)
	one.first(f, storedEvent(0, []uint64{1, 2}))
	wantKeys(t, x, 1, keysOf(connector.Scope{}, 1, 2)...)
	stopReplay()
	one.stop()
	one.again()
	wait.For(t, "a failed replay", func() bool { s := f.Stats(); return s.Connects == 2 && s.ReplayFailures > 0 })
	wait.For(t, "that the blocks are forgotten", func() bool { return len(x.keys(1)) == 0 })
	if s := f.Stats(); s.State != StateStale {
		t.Errorf("%+v", s)
	}
}

// An index that is full forgets parents: no rebuild would bring them back for long.
func TestAFullIndexDoesNotHaveRanksRebuilt(t *testing.T) {
	one := startProcess(t, listen(t))
	x, err := prefix.New(prefix.Options{MaxBlocks: 100})
	if err != nil {
		t.Fatal(err)
	}
	h, err := x.AddHolder("engine")
	if err != nil {
		t.Fatal(err)
	}
	o := (&ownEngine{pub: one.pub}).options()
	o.Holder, o.UnknownParentsMax = h, 3
	f := follow(t, o, x)
	one.first(f)
	var prompts, turns [][]byte
	for n := range uint64(300) {
		prompts = append(prompts, storedEvent(0, []uint64{n + 1}))
		turns = append(turns, storedEvent(n+1, []uint64{n + 1001}))
	}
	one.pub.Publish([]byte("kv"), seqFrame(1), eventBatch(prompts...))
	one.pub.Publish([]byte("kv"), seqFrame(2), eventBatch(turns...))
	one.pub.Publish([]byte("kv"), seqFrame(3), eventBatch())
	if s := waitSeq(t, f, 3); s.UnknownParents < 100 || s.Resyncs != 0 || s.State != StateSynced {
		t.Errorf("%+v", s)
	}
}

// lines are those of a log.
func lines(log *testlog.Text) []string {
	return strings.Split(strings.TrimSpace(log.String()), "\n")
}

// A wrong endpoint shows in the log, but not at every attempt.
func TestWhatCannotBeReachedIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testlog.Text
		logger := slog.New(slog.NewTextHandler(&log, nil))
		f := follow(t, RankOptions{Endpoint: closedEndpoint(t), Holder: 1, BlockSize: blocksize.Of(testBlockSize), Logger: logger}, newMemIndex())
		o := residencyOptions()
		o.Logger = logger
		r, _, store := followStore(t, o) // it refuses all connections
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(store.queries) < 10 || f.Stats().Error == "" || r.Stats().Error == "" {
			t.Errorf("%d requests, %+v, %+v", len(store.queries), f.Stats(), r.Stats())
		}
		if lines := lines(&log); len(lines) != 2 {
			t.Errorf("%d lines: %q", len(lines), lines)
		}
	})
}

// The router's own number of a rank is in the logger that it hands to the feed.
func TestLogLinesNameEachThingOnce(t *testing.T) {
	one := startProcess(t, listen(t))
	var log testlog.Text
	o := (&ownEngine{pub: one.pub}).options()
	o.ReplayEndpoint = closedEndpoint(t)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil)).With("rank", 7)
	f := follow(t, o, newMemIndex())
	wait.For(t, "a failed replay", func() bool { return f.Stats().ReplayFailures > 0 })
	one.stop()
	wait.For(t, "a line of it", func() bool { return strings.Contains(strings.Join(lines(&log), " "), "lost the engine") })
	quoted, key := regexp.MustCompile(`"(\\.|[^"\\])*"`), regexp.MustCompile(`(\w+)=`)
	for _, line := range lines(&log) {
		seen := make(map[string]bool)
		for _, m := range key.FindAllStringSubmatch(quoted.ReplaceAllString(line, ""), -1) {
			if seen[m[1]] {
				t.Errorf("%s twice in %s", m[1], line)
			}
			seen[m[1]] = true
		}
		if !seen["rank"] || !seen["dp_rank"] {
			t.Errorf("which rank? %s", line)
		}
	}
}
