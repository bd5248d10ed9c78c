package fetch

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/catalog"
)

// phase is how far an op has come. It is guarded by the mutex of the fetcher.
type phase uint8

const (
	gathered phase = iota // it waits for others with which it shares a range
	queued                // its range waits for its turn
	asked                 // its range is asked for
	arriving              // its buffer is written to
	ended
)

// task is an op of a call of [Fetcher.Read] on its way.
type task struct {
	op    *store.ReadOp
	batch *batch
	place catalog.Place
	order uint64 // of arrival, among all ops
	// found says that the op was gathered; else the call of Read reports it at once.
	found bool
	phase phase
	run   *run // from queued on
	// givenUp is why an op is not wanted any more whose record is arriving.
	givenUp error
	// torn says that the op ended while a run or the gathering had it: then it is not used again.
	torn bool
	// bad counts records that were not what they should be, short bodies that ended in the record, broken
	// connections that broke in it. Only the run's goroutine uses them.
	bad, short, broken uint8
}

// end is the byte of the object after the record's slot.
func (t *task) end() int64 { return t.place.From + t.place.Bytes }

// batch is one call of Read.
type batch struct {
	done  func(*store.ReadOp)
	tasks []*task
	left  int           // ops not reported; guarded by the mutex of the fetcher
	ended chan struct{} // has a token when left is 0
	timer *time.Timer
	began time.Time
}

// begin registers a call of Read. It returns nil if the fetcher is closed.
func (f *Fetcher) begin(ops []*store.ReadOp, done func(*store.ReadOp)) *batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.calls++
	b, ok := pop(&f.batches)
	if !ok {
		b = &batch{ended: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	}
	b.done, b.left, b.began = done, len(ops), time.Now()
	for _, op := range ops {
		t, ok := pop(&f.idleTasks)
		if !ok {
			t = new(task)
		}
		op.Err = nil
		op.SetSettled(true)
		t.op, t.batch = op, b
		b.tasks = append(b.tasks, t)
	}
	return b
}

// end ends a call of Read all of whose ops are reported.
func (f *Fetcher) end(b *batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range b.tasks {
		if !t.torn {
			*t = task{}
			f.idleTasks = append(f.idleTasks, t)
		}
	}
	clear(b.tasks)
	b.done, b.tasks = nil, b.tasks[:0]
	f.batches = append(f.batches, b)
	if f.calls--; f.calls == 0 {
		f.idle.Broadcast()
	}
}

// pop takes the last element.
func pop[T any](s *[]*T) (*T, bool) {
	k := len(*s) - 1
	if k < 0 {
		return nil, false
	}
	v := (*s)[k]
	(*s)[k] = nil
	*s = (*s)[:k]
	return v, true
}

// report calls done for an op whose phase is ended. The op is the caller's from then on.
func (f *Fetcher) report(t *task) {
	b := t.batch
	f.counts.ended(t.op)
	b.done(t.op)
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.left--; b.left == 0 {
		b.ended <- struct{}{}
	}
}

// await waits for a call's ops, and gives up what is not wanted any more or waits for too long.
func (f *Fetcher) await(ctx context.Context, b *batch) {
	interval := max(f.o.Timeout/8, time.Millisecond)
	b.timer.Reset(interval)
	defer b.timer.Stop()
	left, closed := ctx.Done(), f.base.Done()
	for {
		select {
		case <-b.ended:
			return
		case <-left:
			left = nil
			f.giveUp(b, fmt.Errorf("%w: %w", store.ErrTimeout, context.Cause(ctx)), nil)
		case <-closed:
			closed = nil
			f.giveUp(b, store.ErrClosed, nil)
		case <-b.timer.C:
			f.giveUp(b, fmt.Errorf("the bucket delivered nothing within %v: %w", f.o.Timeout, store.ErrTimeout), f.overdue)
			b.timer.Reset(interval)
		}
	}
}

// overdue selects ops that wait for their turn while the bucket delivers nothing. What was asked for has a
// deadline of its own. f.mu is held.
func (f *Fetcher) overdue(t *task, now time.Time) bool {
	return t.phase < asked && now.Sub(t.batch.began) > f.o.Timeout && now.Sub(f.progress) > f.o.Timeout
}

// giveUp ends those ops of a call that are on their way and that a function selects; nil selects all. A record
// that is arriving is broken off, and reported once nothing is written to its buffer any more.
func (f *Fetcher) giveUp(b *batch, err error, selects func(*task, time.Time) bool) {
	now := time.Now()
	for _, t := range b.tasks {
		f.mu.Lock()
		if t.phase == ended || selects != nil && !selects(t, now) {
			f.mu.Unlock()
			continue
		}
		if t.phase == arriving {
			t.givenUp = err
			t.run.halt(errUnwanted)
			f.mu.Unlock()
			continue
		}
		t.torn = true
		f.finish(t, err)
		if r := t.run; r != nil && r.live == 0 {
			r.halt(errUnwanted)
		}
		f.dispatch()
		f.mu.Unlock()
		f.report(t)
	}
}

// finish sets the result of an op, which is to be reported without the lock. f.mu is held.
func (f *Fetcher) finish(t *task, err error) {
	if t.run != nil {
		t.run.live--
		t.run.bytes -= t.place.Bytes
		if t.phase >= asked {
			f.inFlight -= t.place.Bytes
		}
	}
	t.phase = ended
	t.op.Err = err
	f.owe(t, -1)
}
