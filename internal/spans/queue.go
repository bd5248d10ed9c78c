package spans

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Bounds of a batch that the collector cannot take now.
const (
	maxTries     = 3
	retryPause   = time.Second
	maxPause     = 30 * time.Second
	warnInterval = 5 * time.Minute
)

// errUnavailable says that a batch may be sent again, after the pause that the collector asks for, 0 if it asks for none.
type errUnavailable struct {
	error
	pause time.Duration
}

func (e *errUnavailable) Unwrap() error { return e.error }

// queue holds ended spans until they are sent. Its goroutine sends and logs; whoever ends a span only puts it in.
type queue struct {
	opts *Options
	// post sends a batch, and returns how many of its spans were refused.
	post     func(context.Context, []sdktrace.ReadOnlySpan) (refused int, err error)
	spans    chan sdktrace.ReadOnlySpan
	stopping chan struct{}
	done     chan struct{}
	// ctx ends what is sent when the time to stop is over.
	ctx    context.Context
	cancel context.CancelFunc

	exported, full, lost atomic.Uint64
	// warned is the time of the last warning, and told the losses that it told of. The goroutine's alone.
	warned time.Time
	told   uint64
	failed bool
}

var _ sdktrace.SpanProcessor = (*queue)(nil)

func newQueue(o *Options, post func(context.Context, []sdktrace.ReadOnlySpan) (int, error)) *queue {
	q := &queue{
		opts: o, post: post, spans: make(chan sdktrace.ReadOnlySpan, o.QueueSpans),
		stopping: make(chan struct{}), done: make(chan struct{}),
	}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	go q.run()
	return q
}

// OnStart is part of the SDK's SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd puts a span in, or drops it. It never waits.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.full.Add(1)
	}
}

// ForceFlush is part of the SDK's SpanProcessor. Nobody asks for it.
func (q *queue) ForceFlush(context.Context) error { return nil }

// Shutdown is part of the SDK's SpanProcessor: it sends what waits until ctx ends. It must be called once.
func (q *queue) Shutdown(ctx context.Context) error {
	close(q.stopping)
	defer q.cancel()
	select {
	case <-q.done:
		return nil
	case <-ctx.Done():
	}
	q.cancel() // what is being sent ends at once
	<-q.done
	return ctx.Err()
}

func (q *queue) run() {
	defer close(q.done)
	batch := make([]sdktrace.ReadOnlySpan, 0, q.opts.BatchSpans)
	for {
		if batch = q.gather(batch[:0]); len(batch) == 0 {
			return
		}
		q.send(batch)
		clear(batch)
	}
}

// gather waits for spans and returns a batch, an empty one at the end.
func (q *queue) gather(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	select {
	case s := <-q.spans:
		batch = append(batch, s)
	case <-q.stopping:
		return q.rest(batch)
	}
	timer := time.NewTimer(q.opts.Interval)
	defer timer.Stop()
	for len(batch) < cap(batch) {
		select {
		case s := <-q.spans:
			batch = append(batch, s)
		case <-timer.C:
			return batch
		case <-q.stopping:
			return q.rest(batch)
		}
	}
	return batch
}

// rest fills a batch with what is there.
func (q *queue) rest(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	for len(batch) < cap(batch) {
		select {
		case s := <-q.spans:
			batch = append(batch, s)
		default:
			return batch
		}
	}
	return batch
}

// send sends a batch, several times if the collector is not there for it.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) {
	for try := 1; ; try++ {
		ctx, cancel := context.WithTimeout(q.ctx, q.opts.Timeout)
		refused, err := q.post(ctx, batch)
		cancel()
		if err == nil || refused > 0 {
			q.exported.Add(uint64(len(batch) - refused))
			q.lost.Add(uint64(refused))
			q.tell(err)
			return
		}
		var later *errUnavailable
		if try == maxTries || !errors.As(err, &later) || !q.pause(later.pause, try) {
			q.lost.Add(uint64(len(batch)))
			q.tell(err)
			return
		}
	}
}

// pause waits before another try, and reports false if there is to be none.
func (q *queue) pause(asked time.Duration, try int) bool {
	timer := time.NewTimer(min(max(asked, retryPause<<(try-1)), maxPause))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-q.stopping:
		return false
	}
}

// tell warns of spans that were lost, now and then, and says when the collector takes spans again.
func (q *queue) tell(err error) {
	lost := q.full.Load() + q.lost.Load()
	switch {
	case err == nil && q.failed && lost == q.told:
		q.failed = false
		q.opts.Logger.Info("the trace collector takes spans again", "url", q.opts.URL)
	case lost > q.told && (q.warned.IsZero() || time.Since(q.warned) >= warnInterval):
		q.opts.Logger.Warn("spans were lost; requests are not affected", "lost", lost-q.told, "url", q.opts.URL, "err", err,
			"remedy", "see whether the collector at otlp_endpoint runs, takes OTLP over HTTP, and knows the key in otlp_headers")
		q.warned, q.told, q.failed = time.Now(), lost, true
	}
}

func (q *queue) stats() Stats {
	return Stats{Exported: q.exported.Load(), Queue: q.full.Load(), Collector: q.lost.Load()}
}
