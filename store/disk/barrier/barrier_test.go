package barrier

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
)

const interval = time.Second

// running is a barrier that [Barrier.Run] makes. Each is made when the test sends how it ends.
type running struct {
	*Barrier
	ends chan end
	made atomic.Int64 // that were begun
	log  bytes.Buffer
}

type end struct {
	more bool
	err  error
}

// run begins to make barriers, until the test ends. It is called in a bubble.
func run(t *testing.T) *running {
	t.Helper()
	r := &running{ends: make(chan end)}
	r.Barrier = New(func() (bool, error) {
		r.made.Add(1)
		e := <-r.ends
		return e.more, e.err
	}, slog.New(slog.NewTextHandler(&r.log, nil)))
	ctx, stop := context.WithCancel(t.Context())
	var runs sync.WaitGroup
	runs.Go(func() { r.Run(ctx, interval) })
	t.Cleanup(func() {
		stop()
		close(r.ends)
		runs.Wait()
	})
	return r
}

// waiting calls Wait in a goroutine of its own.
func (r *running) waiting(ctx context.Context) <-chan error {
	result := make(chan error, 1)
	go func() { result <- r.Wait(ctx) }()
	synctest.Wait()
	return result
}

// finish ends the barrier that is being made.
func (r *running) finish(more bool, err error) {
	r.ends <- end{more, err}
	synctest.Wait()
}

// ended is the result of a Wait that must have ended.
func ended(t *testing.T, result <-chan error) error {
	t.Helper()
	select {
	case err := <-result:
		return err
	default:
		t.Fatal("it waits for more than the first barrier that began after it")
		return nil
	}
}

// stillWaits checks that a Wait has not ended.
func stillWaits(t *testing.T, result <-chan error) {
	t.Helper()
	select {
	case err := <-result:
		t.Fatalf("it does not wait for a barrier that began after it: %v", err)
	default:
	}
}

// pass lets that many intervals pass.
func pass(intervals int) {
	time.Sleep(time.Duration(intervals) * interval)
	synctest.Wait()
}

// counts checks how many barriers have begun and ended.
func (r *running) counts(t *testing.T, begun, ended uint64) {
	t.Helper()
	if r.Begun() != begun || r.Ended() != ended || uint64(r.made.Load()) != begun {
		t.Fatalf("%d barriers begun, %d ended, %d made; want %d and %d", r.Begun(), r.Ended(), r.made.Load(), begun, ended)
	}
}

// What was written while a barrier is made need not be in it: those that wait from then on wait for
// the next one, all of them for the same.
func TestAllWaitForTheFirstBarrierThatBeginsAfterThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		first := r.waiting(t.Context())
		r.counts(t, 1, 0)
		var late []<-chan error
		for range 50 {
			late = append(late, r.waiting(t.Context()))
		}
		r.finish(false, nil)
		if err := ended(t, first); err != nil {
			t.Error(err)
		}
		for _, w := range late {
			stillWaits(t, w)
		}
		r.counts(t, 2, 1)
		r.finish(false, nil)
		for _, w := range late {
			if err := ended(t, w); err != nil {
				t.Error(err)
			}
		}
		pass(10)
		r.counts(t, 2, 2)
	})
}

// The error of a barrier is that of those that waited for it, and of no others.
func TestFailureIsToldToThoseThatWaitedForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("the disk fails")
		r := run(t)
		first := r.waiting(t.Context())
		second := r.waiting(t.Context())
		r.finish(false, failure)
		third := r.waiting(t.Context())
		r.finish(false, nil)
		r.finish(false, failure)
		if err := ended(t, first); !errors.Is(err, failure) {
			t.Errorf("of the barrier that failed: %v", err)
		}
		if err := ended(t, second); err != nil {
			t.Errorf("of the next one: %v", err)
		}
		if err := ended(t, third); !errors.Is(err, failure) {
			t.Errorf("of the one that failed again: %v", err)
		}
		for r.Begun() > r.Ended() { // one that failed may be made again at once
			r.finish(false, nil)
		}
		fourth := r.waiting(t.Context())
		r.finish(false, nil)
		if err := ended(t, fourth); err != nil {
			t.Errorf("after all failures: %v", err)
		}
	})
}

// What a barrier failed to make durable is tried again at each interval though nobody asks, until it
// is. The log says once that barriers fail, and again when they do after one that did not.
func TestFailedBarrierIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		r.Touch()
		made := uint64(0)
		logged := 0
		for range 2 {
			for range 3 {
				pass(1)
				r.counts(t, made+1, made)
				r.finish(false, errors.New("the disk fails"))
				made++
			}
			logged++
			if n := strings.Count(r.log.String(), "barrier failed"); n != logged {
				t.Errorf("the log says %d times that barriers fail, want %d", n, logged)
			}
			pass(1)
			r.finish(false, nil)
			made++
			pass(10)
			r.counts(t, made, made)
			r.Touch()
		}
		pass(1)
		r.finish(false, nil)
	})
}

// Nothing is made while there is nothing to make durable, whoever asks. What is noted while a
// barrier is made is for the next one, as is what that one asks for.
func TestBarrierIsMadeIfThereIsSomethingToMakeDurable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		r.Request()
		pass(10)
		r.counts(t, 0, 0)
		r.Touch()
		synctest.Wait()
		r.counts(t, 0, 0) // not before its time
		r.Request()
		synctest.Wait()
		r.counts(t, 1, 0) // unless somebody asks
		r.Touch()
		r.finish(false, nil)
		pass(1)
		r.counts(t, 2, 1)
		r.finish(true, nil)
		pass(1)
		r.counts(t, 3, 2)
		r.finish(false, nil)
		pass(10)
		r.counts(t, 3, 3)
	})
}

// A wait ends with its context, and with the barrier. What it asked for is made all the same.
func TestWaitEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		cause := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		gone, stays := r.waiting(ctx), r.waiting(t.Context()) // the first barrier is for one of them
		cancel(cause)
		synctest.Wait()
		if err := ended(t, gone); !errors.Is(err, store.ErrTimeout) || !errors.Is(err, cause) {
			t.Errorf("of a context that ended: %v", err)
		}
		stillWaits(t, stays)
		r.counts(t, 1, 0)
		r.Close()
		synctest.Wait()
		if err := ended(t, stays); !errors.Is(err, store.ErrClosed) {
			t.Errorf("of a barrier that was closed: %v", err)
		}
		if err := r.Wait(t.Context()); !errors.Is(err, store.ErrClosed) {
			t.Errorf("of one that is closed: %v", err)
		}
		r.finish(false, nil)
		r.counts(t, 2, 1)
		r.finish(false, nil)
		r.counts(t, 2, 2)
	})
}

// What was written before a wait that ends without an error is durable, whatever else happens: many
// write and wait, and some barriers fail.
func TestWhatWasWrittenBeforeAWaitIsDurable(t *testing.T) {
	const writers, writes = 16, 100
	g := seed.Random(t, 0)
	var written [writers]atomic.Int64
	var durable [writers]atomic.Int64
	failure := errors.New("the disk fails")
	b := New(func() (bool, error) {
		var now [writers]int64
		for i := range written {
			now[i] = written[i].Load()
		}
		if g.IntN(3) == 0 {
			return false, failure
		}
		for i := range durable {
			durable[i].Store(now[i])
		}
		return g.IntN(2) == 0, nil
	}, slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	var making, writing sync.WaitGroup
	making.Go(func() { b.Run(ctx, time.Hour) })
	var failed atomic.Int64
	for i := range writers {
		writing.Go(func() {
			for n := int64(1); n <= writes; n++ {
				written[i].Store(n)
				b.Touch()
				switch err := b.Wait(ctx); {
				case err == nil && durable[i].Load() < n:
					t.Errorf("%d of %d writes are durable", durable[i].Load(), n)
				case errors.Is(err, failure):
					failed.Add(1)
				case err != nil:
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	stop()
	making.Wait()
	if n := failed.Load(); n == 0 || n == writers*writes {
		t.Errorf("%d of %d waits failed: the test shows nothing", n, writers*writes)
	}
}
