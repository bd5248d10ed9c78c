package fetch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/bucket"
	"github.com/kvconn/kvconn/store/object/format"
)

const (
	// A record is bad, and a body short, for good the second time: the first may have been the network.
	maxBad, maxShort, maxWrong = 2, 2, 2
	// maxBroken is how many connections may break in one record. There is a pause before the next request.
	maxBroken   = 4
	brokenPause = 50 * time.Millisecond
)

// Why a GET is ended before its end.
var (
	errUnwanted = errors.New("nobody wants the rest")
	errStalled  = errors.New("the body stands still")
	errLate     = errors.New("the record's time is up")
)

// errShort is a body that ends before its records do.
var errShort = errors.New("the object is shorter than its list says")

// work reads a range, with as many requests as it takes. All its ops are reported when it returns.
func (f *Fetcher) work(r *run, w *worker) {
	ctx, cancel := context.WithDeadlineCause(f.base, r.began.Add(f.o.Timeout), errLate)
	defer cancel()
	for n := 0; ; n++ {
		get, stop := context.WithCancelCause(ctx)
		if !f.trim(r, stop) {
			stop(nil)
			break
		}
		if n > 0 {
			f.counts.resumed.Add(1)
		}
		at, err := f.stream(get, r, &w.scratch)
		why := context.Cause(get)
		stop(nil)
		if err != nil {
			f.judge(ctx, r, at, why, err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used--
	f.inFlight -= r.bytes // of the gaps
	f.speed.end(time.Now())
	f.recycle(r)
	f.rest(w)
	f.dispatch()
}

// trim drops the tasks of a run that have ended. It reports false if there are no others; else stop is what
// breaks off the next GET.
func (f *Fetcher) trim(r *run, stop context.CancelCauseFunc) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.tasks = slices.DeleteFunc(r.tasks, func(t *task) bool { return t == nil || t.phase == ended })
	r.stop = stop
	return len(r.tasks) > 0
}

// take marks a record as arriving. It reports false if it is not wanted any more.
func (f *Fetcher) take(t *task) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.phase == ended {
		return false
	}
	t.phase = arriving
	return true
}

// putBack ends the arrival of a record that is to be read again, unless it is not wanted any more.
func (f *Fetcher) putBack(r *run, i int) {
	t := r.tasks[i]
	f.mu.Lock()
	if t.givenUp == nil {
		t.phase = asked
		f.mu.Unlock()
		return
	}
	f.mu.Unlock()
	f.done(r, i, t.givenUp)
}

// done ends an op of a run and reports it. The run knows nothing of it afterwards.
func (f *Fetcher) done(r *run, i int, err error) {
	t := r.tasks[i]
	now := time.Now()
	f.mu.Lock()
	if t.phase == ended {
		f.mu.Unlock()
		return
	}
	f.finish(t, err)
	r.tasks[i] = nil
	if err == nil {
		f.progress = now
		f.speed.delivered(now, len(t.op.Payload))
		f.dispatch()
	}
	f.mu.Unlock()
	f.report(t)
}

// fail ends all ops of a run.
func (f *Fetcher) fail(r *run, err error) {
	for i, t := range r.tasks {
		if t != nil {
			f.done(r, i, fmt.Errorf("object %s: %w", t.place.Object, err)) // an op that has ended is its caller's
		}
	}
}

// judge decides what becomes of a run whose GET ended with an error: what is not ended by it is asked for
// again. at is the record that the body ended in, or nil if there was no body; why is what ended the GET, if
// we did.
func (f *Fetcher) judge(ctx context.Context, r *run, at *task, why, err error) {
	object := objectOf(r)
	lost, cause := errors.Is(err, bucket.ErrMissing) || errors.Is(err, bucket.ErrRange), format.CauseLost
	if errors.Is(err, bucket.ErrArchived) {
		lost, cause = true, format.CauseArchived
	}
	pause := uint8(0)
	switch {
	case f.base.Err() != nil:
		f.fail(r, store.ErrClosed)
	case ctx.Err() != nil:
		f.fail(r, fmt.Errorf("not read within %v: %w", f.o.Timeout, store.ErrTimeout))
	case errors.Is(why, errUnwanted):
	case errors.Is(why, errStalled):
		f.counts.stalls.Add(1)
	case lost:
	case errors.Is(err, context.DeadlineExceeded): // a rate has no room in time
		f.fail(r, fmt.Errorf("%w: %w", store.ErrTimeout, err))
	case at != nil && (errors.Is(err, errShort) || errors.Is(err, bucket.ErrDamaged)):
		at.short++
		lost = at.short >= maxShort
	case at != nil:
		if at.broken++; at.broken >= maxBroken {
			f.fail(r, fmt.Errorf("%w: %w", store.ErrIO, err))
			break
		}
		pause = at.broken
	case errors.Is(err, bucket.ErrDamaged): // the server's answers are not what is asked for: it says nothing of the object
		if r.wrong++; r.wrong >= maxWrong {
			f.fail(r, fmt.Errorf("%w: %w", store.ErrIO, err))
		}
	default:
		f.fail(r, fmt.Errorf("%w: %w", store.ErrIO, err))
	}
	if lost {
		f.lose(object, cause, err)
		f.fail(r, fmt.Errorf("%w: %w", store.ErrGone, err))
	}
	f.pause(ctx, pause)
}

// pause waits before the request of a connection that broke is repeated; the first time it does not.
func (f *Fetcher) pause(ctx context.Context, broken uint8) {
	if broken < 2 {
		return
	}
	sleep.For(ctx, brokenPause<<(broken-2), nil)
}

// objectOf is the object of a run.
func objectOf(r *run) (id format.ObjectID) {
	for _, t := range r.tasks {
		if t != nil {
			return t.place.Object
		}
	}
	return id
}
