package tracelog

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/replay"
)

const engineBlock, traceBlock = 16, 64

// keysOf are the keys of a prompt's full blocks, as a leader has them.
func keysOf(tokens []uint32) []connector.Key {
	return new(connector.KeyHasher).Append(nil, connector.RootKey(engineBlock, connector.Scope{}), tokens, engineBlock)
}

func tokensOf(seed uint64, n int) []uint32 {
	r := rand.New(rand.NewPCG(seed, 0))
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = r.Uint32()
	}
	return tokens
}

func open(t *testing.T, change func(*Options)) *Log {
	t.Helper()
	o := Options{Path: filepath.Join(t.TempDir(), "trace.jsonl"), BlockTokens: traceBlock}
	if change != nil {
		change(&o)
	}
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func engine(t *testing.T, l *Log, namespace byte) *Engine {
	t.Helper()
	e, err := l.Engine(connector.NamespaceDigest{namespace}, engineBlock)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func replayed(t *testing.T, path string) *replay.Trace {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := replay.Read(bytes.NewReader(b), replay.ReadOptions{BlockTokens: traceBlock})
	if err != nil {
		t.Fatalf("%v\n%.1000s", err, b)
	}
	return trace
}

// What replay makes of a trace is what happened: which prompts share blocks, how long they are, and in which order they
// came, in whatever order they ended.
func TestReplayReadsWhatIsRecorded(t *testing.T) {
	l := open(t, nil)
	a, b := engine(t, l, 1), engine(t, l, 2)
	first := tokensOf(1, 5*traceBlock+7)
	second := append(first[:2*traceBlock:2*traceBlock], tokensOf(2, traceBlock)...)
	one := a.Arrived(len(first), keysOf(first))
	two := a.Arrived(len(second), keysOf(second))
	other := b.Arrived(len(first), keysOf(first)) // of another model: nothing is shared
	short := a.Arrived(3, nil)
	a.Ended(two, 20)
	b.Ended(other, 30)
	a.Ended(one, 10)
	a.Ended(short, -1) // aborted before its prompt was computed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	trace := replayed(t, l.opts.Path)
	if s := l.Stats(); s != (Stats{Recorded: 4}) || len(trace.Requests) != 4 || trace.DistinctBlocks != 5+1+5 {
		t.Fatalf("%+v, %d requests with %d distinct blocks", s, len(trace.Requests), trace.DistinctBlocks)
	}
	for i, want := range []struct{ input, output, blocks int }{{len(first), 10, 5}, {len(second), 20, 3}, {len(first), 30, 5}, {3, 0, 0}} {
		r := trace.Requests[i]
		if r.InputTokens != want.input || r.OutputTokens != want.output || len(r.Blocks) != want.blocks {
			t.Errorf("request %d: %+v, want %+v", i, r, want)
		}
	}
	if q, r := trace.Requests[0].Blocks, trace.Requests[1].Blocks; q[0] != r[0] || q[1] != r[1] || q[2] == r[2] {
		t.Errorf("blocks %v and %v", q, r)
	}
	if info, err := os.Stat(l.opts.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A request that nobody ends is written without the length of its answer, and does not hold up the others.
func TestARequestWithoutAnEndIsWrittenInTime(t *testing.T) {
	var now atomic.Int64
	l := open(t, func(o *Options) {
		o.Wait, o.Now = time.Minute, func() time.Time { return time.Unix(0, now.Load()) }
	})
	e := engine(t, l, 1)
	tokens := tokensOf(1, traceBlock)
	e.Arrived(len(tokens), keysOf(tokens))
	now.Store(int64(2 * time.Second))
	e.Ended(e.Arrived(len(tokens), keysOf(tokens)), 5)
	now.Store(int64(time.Minute))
	wait.For(t, "both are written", func() bool { return l.Stats().Recorded == 2 })
	if trace := replayed(t, l.opts.Path); trace.Requests[0].OutputTokens != 0 || trace.Requests[1].OutputTokens != 5 || trace.Requests[1].At != 2 {
		t.Errorf("%+v", trace.Requests)
	}
}

// A full file is kept under another name, and a trace that is there at the start is, too.
func TestFilesAreBounded(t *testing.T) {
	l := open(t, func(o *Options) { o.MaxBytes = minBytes })
	e := engine(t, l, 1)
	tokens := tokensOf(1, 1000*traceBlock)
	keys := keysOf(tokens)
	n := uint64(0)
	for n < 1200 { // of 20 kB: more than one file holds, and less than two
		if number := e.Arrived(len(tokens), keys); number != 0 {
			e.Ended(number, 1)
			n++
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	kept, now := replayed(t, l.opts.Path+".1"), replayed(t, l.opts.Path)
	if got := uint64(len(kept.Requests) + len(now.Requests)); got != n || l.Stats().Recorded != n {
		t.Errorf("%d of %d requests are kept; %+v", got, n, l.Stats())
	}
	for _, path := range []string{l.opts.Path, l.opts.Path + ".1"} {
		if info, err := os.Stat(path); err != nil || info.Size() > minBytes || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
	before := replayed(t, l.opts.Path)
	again, err := Open(l.opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
	if got := replayed(t, l.opts.Path+".1"); len(got.Requests) != len(before.Requests) {
		t.Errorf("%d requests are kept of %d", len(got.Requests), len(before.Requests))
	}
}

// A disk that takes nothing costs requests of the trace and nothing else, and the trace goes on at a whole line.
func TestAFailingDiskDropsRequests(t *testing.T) {
	var log testlog.Text
	l := open(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	e := engine(t, l, 1)
	tokens := tokensOf(1, traceBlock)
	record := func() { e.Ended(e.Arrived(len(tokens), keysOf(tokens)), 1) }
	record()
	wait.For(t, "the first is written", func() bool { return l.Stats().Recorded == 1 })
	if err := l.file.f.Close(); err != nil { // the writer rests: the queue is empty
		t.Fatal(err)
	}
	record()
	record()
	wait.For(t, "the others are counted", func() bool { return l.Stats().Dropped == 2 })
	wait.For(t, "the failure is logged", func() bool { return strings.Contains(log.String(), "level=WARN") })
	if trace := replayed(t, l.opts.Path); len(trace.Requests) != 1 {
		t.Errorf("%d requests", len(trace.Requests))
	}
}

// A writer that stands still holds nobody up.
func TestASlowDiskIsNotWaitedFor(t *testing.T) {
	l := open(t, nil)
	e := engine(t, l, 1)
	tokens := tokensOf(1, traceBlock)
	keys := keysOf(tokens)
	stop := &Log{opts: l.opts, start: l.start, queue: make(chan message, 1)} // nobody reads its queue
	stop.free.New = l.free.New
	e.log = stop
	if e.Arrived(len(tokens), keys) != 1 || e.Arrived(len(tokens), keys) != 0 || stop.Stats().Dropped != 1 {
		t.Errorf("%+v", stop.Stats())
	}
	e.Ended(1, 5)
	large := &Log{opts: l.opts, start: l.start, queue: make(chan message, 8)} // has room for messages, but not for large ones
	large.free.New = l.free.New
	e.log = large
	long := make([]connector.Key, maxHashes*traceBlock/engineBlock)
	for n := range 8 {
		if got := e.Arrived(maxHashes*traceBlock, long); (got != 0) != (n < maxQueued/maxHashes) {
			t.Errorf("long prompt %d has the number %d", n, got)
		}
	}
}

func TestRequestsThatCannotBeRecordedAreCounted(t *testing.T) {
	l := open(t, nil)
	e := engine(t, l, 1)
	for _, n := range []int{0, -1, 2 * traceBlock} { // more than there are keys for
		if e.Arrived(n, nil) != 0 {
			t.Errorf("%d tokens are recorded", n)
		}
	}
	if got := l.Stats(); got.Dropped != 3 {
		t.Errorf("%+v", got)
	}
	if _, err := l.Engine(connector.NamespaceDigest{}, 48); err == nil || !strings.Contains(err.Error(), "no multiple") {
		t.Error(err)
	}
}

func TestManyEnginesMayRecordAtOnce(t *testing.T) {
	l := open(t, nil)
	tokens := tokensOf(1, 4*traceBlock)
	keys := keysOf(tokens)
	var engines sync.WaitGroup
	for n := range byte(4) {
		e := engine(t, l, n)
		engines.Go(func() {
			for range 500 {
				e.Ended(e.Arrived(len(tokens), keys), 3)
			}
		})
	}
	engines.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := l.Stats()
	if s.Recorded+s.Dropped != 2000 || len(replayed(t, l.opts.Path).Requests) != int(s.Recorded) {
		t.Errorf("%+v", s)
	}
	engine(t, l, 1).Arrived(len(tokens), keys) // after the end: dropped, no panic
}

func TestWhereNoTraceCanBeWritten(t *testing.T) {
	dir := t.TempDir()
	for want, o := range map[string]Options{
		"no file":          {},
		"is no file":       {Path: dir},
		"no such file":     {Path: filepath.Join(dir, "not", "there")},
		"too small":        {Path: filepath.Join(dir, "t"), MaxBytes: 1},
		"blocks of -1":     {Path: filepath.Join(dir, "t"), BlockTokens: -1},
		"must be positive": {Path: filepath.Join(dir, "t"), Wait: -1},
	} {
		if _, err := Open(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func BenchmarkArrived(b *testing.B) {
	l, err := Open(Options{Path: filepath.Join(b.TempDir(), "t")})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	e, err := l.Engine(connector.NamespaceDigest{1}, engineBlock)
	if err != nil {
		b.Fatal(err)
	}
	keys := keysOf(tokensOf(1, 131072))
	b.ReportAllocs()
	for b.Loop() {
		e.Ended(e.Arrived(131072, keys), 1)
	}
}
