package bucket

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
)

const (
	// Pauses between attempts double from firstBackoff to lastBackoff; each is between half of it and
	// the whole.
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 30 * time.Second
)

// run sends a request until it succeeds, fails for good, or the breaker opens. try makes one attempt;
// it may return an error of the library or of this package. The attempt that succeeded has to be ended.
func (b *Bucket) run(ctx context.Context, kind Kind, name string, try func(a *attempt) error) (*attempt, error) {
	var last *Error
	renewed := false
	for n := 1; ; n++ {
		if err := ctx.Err(); err != nil {
			return nil, b.stopped(kind, name, last, err)
		}
		leave, ok := b.breaker.enter()
		if !ok {
			return nil, b.stopped(kind, name, last, ErrOpen)
		}
		a := b.newAttempt(ctx, kind, leave)
		used, err := b.credentials.ready(a.ctx)
		if err == nil {
			err = try(a)
		}
		if err == nil {
			return a, nil
		}
		e := b.classify(ctx, a, name, err)
		e.Attempts = n
		a.end(e)
		last = e
		switch {
		case n == b.opts.Attempts, ctx.Err() != nil:
			return nil, e
		case e.renew && !renewed:
			renewed = true
			b.credentials.forget(used)
		case e.Cause == ErrThrottled, e.Cause == ErrUnavailable:
			if !pause(ctx, max(backoff(n), min(a.asked(), lastBackoff))) {
				return nil, e
			}
		default:
			return nil, e
		}
		b.counts.again()
	}
}

// stopped is the error of a request that is not sent, or not again. What it last failed with says
// more than that.
func (b *Bucket) stopped(kind Kind, name string, last *Error, why error) *Error {
	if last != nil {
		last.under = why
		return last
	}
	b.counts.failed(why)
	return &Error{Kind: kind, Name: name, Cause: why}
}

// backoff is the pause after the nth attempt.
func backoff(n int) time.Duration {
	d := lastBackoff
	if n < 10 {
		d = min(d, firstBackoff<<(n-1))
	}
	return d/2 + rand.N(d/2+1)
}

// pause waits. It reports whether there is time for that, and for anything after it.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) <= d {
		return false
	}
	return sleep.For(ctx, d, nil)
}

// is reports whether err has a cause, for errors that are an [*Error] or nil.
func is(err error, causes ...error) bool {
	for _, c := range causes {
		if errors.Is(err, c) {
			return true
		}
	}
	return false
}
