package fetch

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/seal"
)

// Random objects, reads, contexts and faults: every op ends once, in time, with its bytes or a typed error,
// nothing is written to a buffer afterwards, and when the faults end all that was not lost can be read.
func TestRandomFaults(t *testing.T) {
	const rounds = 12
	random := seed.Random(t, 0)
	for round := range rounds {
		source := rand.NewPCG(random.Uint64(), 1)
		var key *seal.Ring
		if round%3 == 0 {
			key = ring(t, 1)
		}
		inBubble(t, func(_ *bucket.Options, o *Options) {
			r := rand.New(source)
			o.Ring = key
			o.Connections = 1 + r.IntN(8)
			o.InFlightBytes = 1 << (16 + r.IntN(8))
			o.RangeBytes = 1 << (14 + r.IntN(8))
			o.GapBytes = 1 << (10 + r.IntN(10))
		}, func(t *testing.T, b *bench) { model(t, b, rand.New(source), round) })
	}
}

// loses are faults that may make an object look lost or damaged.
func loses(e s3proxy.Effect) bool { return e.Cut > 0 || e.Flip > 0 || e.Status == 404 }

func model(t *testing.T, b *bench, r *rand.Rand, round int) {
	var all []*written
	for i := range 2 + r.IntN(6) {
		b.build = builder(t, b.o.Ring, i%2 == 1)
		all = append(all, b.put(1+r.IntN(24), 1+r.IntN(1<<(8+r.IntN(11))))...)
	}
	script, mayLose := faults(r)
	b.proxy.Play(script...)
	var calls sync.WaitGroup
	for range 1 + r.IntN(12) {
		mine := rand.New(rand.NewPCG(r.Uint64(), 2))
		calls.Go(func() { someReads(t, b, mine, all) })
		time.Sleep(time.Duration(r.IntN(200)) * time.Millisecond)
	}
	calls.Wait()
	t.Logf("round %d: %d faults, %+v", round, b.proxy.Injected(), b.Stats())
	b.proxy.Stop()
	if len(b.lost) > 0 && !mayLose {
		t.Errorf("round %d: lost %v by %+v", round, b.lost, script)
	}
	time.Sleep(2 * time.Minute)                            // the breaker may be open
	b.read(t.Context(), all[0].op(), all[1%len(all)].op()) // and closes by a request
	time.Sleep(time.Minute)
	for _, w := range all {
		op := w.op()
		b.read(t.Context(), op)
		var cause error
		if b.whyLost(w.place.Object) != 0 {
			cause = store.ErrGone
		}
		want(t, cause, op)
	}
}

// faults draws a script, and says whether objects may be lost by it.
func faults(r *rand.Rand) (script []s3proxy.Clause, mayLose bool) {
	kinds := []func() s3proxy.Effect{
		func() s3proxy.Effect { return s3proxy.Effect{Delay: time.Duration(r.IntN(1000)) * time.Millisecond} },
		func() s3proxy.Effect { return s3proxy.Effect{Delay: time.Minute} },
		func() s3proxy.Effect { return s3proxy.Effect{Stall: time.Duration(r.IntN(3000)) * time.Millisecond} },
		func() s3proxy.Effect { return s3proxy.Effect{Stall: time.Minute} },
		func() s3proxy.Effect { return s3proxy.Effect{Status: 503, Code: "SlowDown"} },
		func() s3proxy.Effect { return s3proxy.Effect{Status: 500, Code: "InternalError"} },
		func() s3proxy.Effect { return s3proxy.Effect{Status: 404, Code: "NoSuchKey"} },
		func() s3proxy.Effect { return s3proxy.Effect{Page: 502} },
		func() s3proxy.Effect { return s3proxy.Effect{Reset: true} },
		func() s3proxy.Effect { return s3proxy.Effect{Lost: true} },
		func() s3proxy.Effect { return s3proxy.Effect{Cut: 1 + r.Int64N(1<<(4+r.IntN(16)))} },
		func() s3proxy.Effect { return s3proxy.Effect{Flip: 1 + r.IntN(3)} },
		func() s3proxy.Effect { return s3proxy.Effect{Whole: true} },
		func() s3proxy.Effect { return s3proxy.Effect{Rate: 1 + r.IntN(50)} },
	}
	for range r.IntN(4) {
		c := s3proxy.Clause{On: s3proxy.Get, Prob: r.Float64(), Seed: r.Uint64(), Do: kinds[r.IntN(len(kinds))]()}
		mayLose = mayLose || loses(c.Do)
		script = append(script, c)
	}
	return script, mayLose
}

// someReads reads some of the records.
func someReads(t *testing.T, b *bench, r *rand.Rand, all []*written) {
	const slack = 200 * time.Millisecond
	for range 1 + r.IntN(4) {
		var ops []*store.ReadOp
		first, ahead := r.IntN(len(all)), r.IntN(4) == 0
		for i := first; i < len(all) && i < first+16; i += 1 + r.IntN(3) {
			op := all[i].op()
			op.Ahead = ahead
			ops = append(ops, op)
		}
		limit := time.Duration(r.IntN(8000)) * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		began := time.Now()
		b.read(ctx, ops...)
		cancel()
		took(t, began, 0, limit+slack)
	}
}
