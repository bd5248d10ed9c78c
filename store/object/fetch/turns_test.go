package fetch

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	objects "github.com/kvconn/kvconn/store/object/format"
)

// watch is a Getter that sees which requests are under way.
type watch struct {
	Getter
	mu          sync.Mutex
	names       []string
	now, most   int
	bytes, peak int64
}

func (w *watch) Get(ctx context.Context, name string, from, size int64) (*bucket.Body, error) {
	w.mu.Lock()
	w.names = append(w.names, name)
	w.now++
	w.bytes += size
	w.most, w.peak = max(w.most, w.now), max(w.peak, w.bytes)
	w.mu.Unlock()
	b, err := w.Getter.Get(ctx, name, from, size)
	if err != nil {
		w.end(size)
		return nil, err
	}
	b.ReadCloser = &watched{ReadCloser: b.ReadCloser, end: sync.OnceFunc(func() { w.end(size) })}
	return b, nil
}

func (w *watch) end(size int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now--
	w.bytes -= size
}

type watched struct {
	io.ReadCloser
	end func()
}

func (w *watched) Close() error {
	w.end()
	return w.ReadCloser.Close()
}

// late gives a Getter what it passes requests on to when the bucket is there.
func withWatch(w *watch) func(*bucket.Options, *Options) {
	return func(_ *bucket.Options, o *Options) { o.Bucket = w }
}

func TestBudget(t *testing.T) {
	w := &watch{}
	inBubble(t, func(bo *bucket.Options, o *Options) {
		withWatch(w)(bo, o)
		o.Connections, o.InFlightBytes = 5, 3<<20
	}, func(t *testing.T, b *bench) {
		w.Getter = b.bucket
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 300 * time.Millisecond}}) // late: hedges would come
		var ops []*store.ReadOp
		for range 10 {
			ops = append(ops, opsOf(b.put(2, large)...)...)
		}
		for range 30 {
			ops = append(ops, opsOf(b.put(1, small)...)...)
		}
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		if w.most > 5 || w.most < 4 {
			t.Errorf("%d requests at one time", w.most)
		}
		if w.peak > 3<<20+1<<20 { // and a hedge
			t.Errorf("%d bytes in flight", w.peak)
		}
	})
}

// A record that is larger than the budget is read alone.
func TestLargerThanTheBudget(t *testing.T) {
	inBubble(t, func(_ *bucket.Options, o *Options) { o.InFlightBytes = 1 << 20 }, func(t *testing.T, b *bench) {
		ops := append(opsOf(b.put(2, 2<<20)...), opsOf(b.put(2, small)...)...)
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
	})
}

// On a slow link no more is asked for than comes in time; on a very slow one once it is known to be that.
func TestSlowLink(t *testing.T) {
	for rate, n := range map[int64]int{3e6: 1, 10e6: 4} {
		inBubble(t, func(bo *bucket.Options, _ *Options) { bo.DownloadBytesPerS = rate }, func(t *testing.T, b *bench) {
			if rate < 5e6 {
				b.read(t.Context(), opsOf(b.put(4, 512<<10)...)...)
			}
			var ops []*store.ReadOp
			for range n {
				ops = append(ops, opsOf(b.put(32, 512<<10)...)...)
			}
			b.read(t.Context(), ops...)
			want(t, nil, ops...)
			if s := b.Speed(); s.BytesPerS < 0.8*float64(rate) || s.BytesPerS > 1.2*float64(rate) {
				t.Errorf("%g bytes/s at a rate of %d", s.BytesPerS, rate)
			}
		})
	}
}

// Reads that no load has asked for take one turn in four while loads wait, and all when none does.
func TestTurns(t *testing.T) {
	w := &watch{}
	inBubble(t, func(bo *bucket.Options, o *Options) {
		withWatch(w)(bo, o)
		o.Connections = 1
	}, func(t *testing.T, b *bench) {
		w.Getter = b.bucket
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 10 * time.Millisecond}})
		ahead := make(map[string]bool)
		var ops []*store.ReadOp
		for i := range 24 {
			op := b.put(1, small)[0].op()
			op.Ahead = i < 12
			ahead[objects.DataName(op.Owner.(*written).place.Object).String()] = op.Ahead
			ops = append(ops, op)
		}
		go func() {
			time.Sleep(5 * time.Millisecond)
			if s := b.Speed(); s.QueuedBytes != 24*small || s.AheadBytes != 12*small {
				t.Errorf("speed %+v", s)
			}
		}()
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		var turns []bool
		for _, name := range w.names {
			turns = append(turns, ahead[name])
		}
		var expect []bool
		for i := range 16 { // 12 of loads, and 4
			expect = append(expect, i%4 == 3)
		}
		expect = append(expect, slices.Repeat([]bool{true}, 8)...)
		if !slices.Equal(turns, expect) {
			t.Errorf("turns of reads ahead: %v", turns)
		}
	})
}

// Loads come in the sequence in which they were asked for, whatever the names of their objects are.
func TestFirstComeFirstServed(t *testing.T) {
	w := &watch{}
	inBubble(t, func(bo *bucket.Options, o *Options) {
		withWatch(w)(bo, o)
		o.Connections = 1
	}, func(t *testing.T, b *bench) {
		w.Getter = b.bucket
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 10 * time.Millisecond}})
		var names []string
		var ops []*store.ReadOp
		for range 10 {
			r := b.put(2, small)
			ops = append(ops, r[1].op(), r[0].op())
		}
		slices.Reverse(ops)
		for i := 0; i < len(ops); i += 2 {
			names = append(names, objects.DataName(ops[i].Owner.(*written).place.Object).String())
		}
		var calls sync.WaitGroup
		for part := range slices.Chunk(ops, 5) {
			calls.Go(func() { b.read(t.Context(), part...) })
			time.Sleep(3 * time.Millisecond)
		}
		calls.Wait()
		if w.names = slices.Compact(w.names); !slices.Equal(w.names, names) {
			t.Errorf("%v, want %v", w.names, names)
		}
	})
}

// A request whose answer is late is sent again, and the first answer wins.
func TestHedge(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(4, small)
		for range 2 * hedgeShare {
			b.read(t.Context(), records[0].op())
		}
		before := b.server.Counts().Get
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, For: 1, Do: s3proxy.Effect{Delay: 3 * time.Second}})
		ops := opsOf(records...)
		began := time.Now()
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		took(t, began, 200*time.Millisecond, 250*time.Millisecond)
		if s := b.Stats(); s.Hedges != 1 || s.HedgesWon != 1 || b.server.Counts().Get != before+1 {
			t.Errorf("stats %+v, %d GETs at the server", s, b.server.Counts().Get-before)
		}
		time.Sleep(10 * time.Second)
		b.Fetcher.mu.Lock()
		defer b.Fetcher.mu.Unlock()
		if b.used != 0 {
			t.Errorf("%d connections in use", b.used)
		}
	})
}

// The first request may win all the same, and either may fail.
func TestHedgeThatLoses(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second s3proxy.Effect
		cause         error
	}{
		{"first wins", s3proxy.Effect{Delay: 300 * time.Millisecond}, s3proxy.Effect{Delay: time.Second}, nil},
		{"second fails", s3proxy.Effect{Delay: 300 * time.Millisecond}, s3proxy.Effect{Status: 403, Code: "AccessDenied"}, nil},
		{"second is told that there is no such object", s3proxy.Effect{Delay: 300 * time.Millisecond}, s3proxy.Effect{Status: 404, Code: "NoSuchKey"}, store.ErrGone},
		{"both hang", s3proxy.Effect{Delay: time.Hour}, s3proxy.Effect{Delay: time.Hour}, store.ErrTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, nil, func(t *testing.T, b *bench) {
				records := b.put(4, small)
				for range 2 * hedgeShare {
					b.read(t.Context(), records[0].op())
				}
				b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, For: 1, Do: c.first}, s3proxy.Clause{On: s3proxy.Get, After: 1, Do: c.second})
				ops := opsOf(records...)
				b.read(t.Context(), ops...)
				want(t, c.cause, ops...)
				if s := b.Stats(); s.Hedges != 1 || s.HedgesWon > 1 {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}

// However slow the bucket becomes, one request in twenty is a hedge at most.
func TestFewHedges(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		records := b.put(4, small)
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Prob: 0.03, Do: s3proxy.Effect{Delay: 2 * time.Second}})
		for range 400 {
			op := records[0].op()
			b.read(t.Context(), op)
			want(t, nil, op)
		}
		s := b.Stats()
		if s.Hedges < 5 || s.Hedges*hedgeShare > s.Ranges {
			t.Errorf("%d hedges of %d ranges", s.Hedges, s.Ranges)
		}
		// What is usual is not late.
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: time.Second}})
		for range headSamples {
			b.read(t.Context(), records[0].op())
		}
		before := b.Stats().Hedges
		for range 100 {
			b.read(t.Context(), records[0].op())
		}
		if n := b.Stats().Hedges - before; n != 0 {
			t.Errorf("%d hedges of a bucket that always takes a second", n)
		}
	})
}

// Speed begins with a guess, follows what is delivered, and sinks while the bucket owes an answer.
func TestSpeed(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, b *bench) {
		if s := b.Speed(); s.BytesPerS != firstBytesPerS || s.LatencyS != firstLatencyS || s.PerRank {
			t.Errorf("at first: %+v", s)
		}
		records := b.put(8, 1<<16)
		// Half of each body comes at once, the other after 400 ms; heads take 50 ms.
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 50 * time.Millisecond}},
			s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Stall: 400 * time.Millisecond}})
		for range 40 {
			ops := opsOf(records...)
			b.read(t.Context(), ops...)
			want(t, nil, ops...)
		}
		s := b.Speed()
		if rate := 8 << 16 / 0.4; s.BytesPerS < 0.9*rate || s.BytesPerS > 1.2*rate {
			t.Errorf("%g bytes/s, want %g", s.BytesPerS, rate)
		}
		if s.LatencyS < 0.05 || s.LatencyS > 0.06 {
			t.Errorf("latency %g s", s.LatencyS)
		}
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: time.Hour}})
		ctx, cancel := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		reading.Go(func() { b.read(ctx, opsOf(records...)...) })
		time.Sleep(4 * time.Second)
		if now := b.Speed(); now.BytesPerS > s.BytesPerS/10 || now.QueuedBytes != 8<<16 {
			t.Errorf("of a bucket that hangs: %+v", now)
		}
		cancel()
		reading.Wait()
	})
}

// Records that lie apart come as fast as requests at one time allow.
func TestSpeedOfRequests(t *testing.T) {
	inBubble(t, func(_ *bucket.Options, o *Options) { o.Connections = 8 }, func(t *testing.T, b *bench) {
		var ops []*store.ReadOp
		for range 400 {
			ops = append(ops, b.put(1, small)[0].op())
		}
		b.proxy.Play(s3proxy.Clause{On: s3proxy.Get, Do: s3proxy.Effect{Delay: 100 * time.Millisecond}})
		b.read(t.Context(), ops...)
		if s, rate := b.Speed(), 8*small/0.1; s.BytesPerS < 0.9*rate || s.BytesPerS > 1.1*rate {
			t.Errorf("%g bytes/s, want %g", s.BytesPerS, rate)
		}
	})
}

// fixed is a Getter that has one object in memory and allocates little. It is for one request at a time.
type fixed struct {
	object []byte
	body   bucket.Body
	reader bytes.Reader
}

func (g *fixed) Get(_ context.Context, _ string, from, size int64) (*bucket.Body, error) {
	if from >= int64(len(g.object)) {
		return nil, bucket.ErrRange
	}
	part := g.object[from:min(from+size, int64(len(g.object)))]
	g.reader.Reset(part)
	g.body = bucket.Body{ReadCloser: io.NopCloser(&g.reader), Length: int64(len(part))}
	return &g.body, nil
}

// A record costs no allocation: only its range does.
func TestAllocations(t *testing.T) {
	g := &fixed{}
	b := newBench(t, func(_ *bucket.Options, o *Options) { o.Bucket = g })
	defer b.Close()
	ops := opsOf(b.putChanged(256, small, func(object []byte) []byte {
		g.object = object
		return object
	})...)
	done := func(op *store.ReadOp) {
		if op.Err != nil {
			t.Error(op.Err)
		}
	}
	read := func(n int) float64 {
		return testing.AllocsPerRun(50, func() { b.Read(t.Context(), ops[:n], done) })
	}
	read(256)
	one, all := read(1), read(256)
	t.Logf("%g allocations for a range with a record, %g with 256", one, all)
	if all > one+2 {
		t.Errorf("%g allocations for a range with a record, %g with 256", one, all)
	}
}
