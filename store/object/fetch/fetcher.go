// Package fetch reads records from a bucket: what loads ask for at one time becomes few ranges, each is one
// GET, and payloads go from the connection straight into the buffers of the ops.
//
// A [Fetcher] bounds what is asked of the bucket at one time, repeats what breaks off, sends a second request
// where the first is late, and verifies every record. Whatever the bucket does, each op ends once, in bounded
// time, with the right bytes or an error that says what to do.
package fetch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/codec"
	"github.com/kvconn/kvconn/store/record"
)

// Fetcher reads records from a bucket. It is safe for concurrent use.
type Fetcher struct {
	o      Options
	opener record.Opener
	// base ends with Close; all requests do.
	base    context.Context
	stop    context.CancelCauseFunc
	workers sync.WaitGroup
	counts  counts

	mu        sync.Mutex
	closed    bool
	calls     int // of Read, under way
	idle      sync.Cond
	gathering []*task
	gather    *time.Timer // runs while there is something in gathering
	order     uint64      // of the newest op
	loads     runs
	aheads    runs
	turn      int // ranges of loads since the last one of a read ahead
	used      int // connections
	inFlight  int64
	backlog   int64 // payload bytes that were asked for and are not delivered
	ahead     int64 // those of backlog that no load has asked for
	progress  time.Time
	speed     speed
	heads     heads
	logged    time.Time

	// For use again:
	batches   []*batch
	idleTasks []*task
	idleRuns  []*run
	resting   []*worker
	kept      int64 // bytes of buffers of resting workers
}

// New returns a fetcher.
func New(o Options) (*Fetcher, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	f := &Fetcher{o: o, opener: record.Opener{Ring: o.Ring, Codec: o.Codec}}
	if f.opener.Codec == nil {
		var err error
		if f.opener.Codec, err = codec.New(o.Connections); err != nil {
			return nil, fmt.Errorf("fetch: %w", err)
		}
	}
	f.idle.L = &f.mu
	f.base, f.stop = context.WithCancelCause(context.Background())
	f.gather = time.AfterFunc(time.Hour, f.cut)
	f.gather.Stop()
	f.speed.seed()
	return f, nil
}

// Read implements [store.Reader]. All ops are settled when they are reported.
func (f *Fetcher) Read(ctx context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	if len(ops) == 0 {
		return
	}
	b := f.begin(ops, done)
	if b == nil {
		for _, op := range ops {
			op.SetSettled(true)
			op.Err = store.ErrClosed
			done(op)
		}
		return
	}
	f.locate(b)
	f.await(ctx, b)
	f.end(b)
}

// locate looks up the ops of a call. What is found is gathered, the others are reported.
func (f *Fetcher) locate(b *batch) {
	for _, t := range b.tasks {
		if t.op.Err = store.CheckBuffer(t.op.Payload); t.op.Err != nil {
			continue
		}
		var known bool
		if t.place, known = f.o.Catalog.Locate(t.op.ID, len(t.op.Payload)); !known {
			t.op.Err = store.ErrGone
		} else if t.place.Bytes <= headerBytes || t.place.From < 0 {
			t.op.Err = fmt.Errorf("record %v: %d bytes at %d of %s: %w", t.op.ID.Key, t.place.Bytes, t.place.From, t.place.Object, store.ErrInvalid)
		}
	}
	f.enqueue(b)
	for _, t := range b.tasks {
		if t.found {
			continue
		}
		f.report(t)
	}
}

// enqueue gathers the ops of a call whose records were found.
func (f *Fetcher) enqueue(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.gathering) == 0 {
		f.gather.Reset(f.o.Gather)
	}
	for _, t := range b.tasks {
		if t.op.Err != nil {
			t.phase = ended
			continue
		}
		t.found, t.phase = true, gathered
		f.order++
		t.order = f.order
		f.owe(t, 1)
		f.gathering = append(f.gathering, t)
	}
}

// owe counts the payload of an op that the bucket owes from now on, or with -1 no longer. f.mu is held.
func (f *Fetcher) owe(t *task, sign int64) {
	bytes := sign * int64(len(t.op.Payload))
	f.backlog += bytes
	if t.op.Ahead {
		f.ahead += bytes
	}
}

// Speed returns how fast records come at the moment. Latency is that of records that are the first of their
// range. Bandwidth is that of all ranges together; what the first of them takes until its answer begins is not
// in it, since it is in the latency. It sinks while the bucket owes an answer for longer than usual. Before the
// first record both are guesses, since a level that was not measured would cost nothing.
func (f *Fetcher) Speed() store.Speed {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.speed.now(time.Now())
	v.QueuedBytes, v.AheadBytes = f.backlog, f.ahead
	return v
}

// Close ends reads under way with [store.ErrClosed], and waits for them. Later ones fail with it at once.
func (f *Fetcher) Close() {
	f.mu.Lock()
	f.closed = true
	f.stop(store.ErrClosed)
	for f.calls > 0 {
		f.idle.Wait()
	}
	f.gather.Stop()
	f.dismiss()
	f.mu.Unlock()
	f.workers.Wait()
}
