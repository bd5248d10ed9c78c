// Package barrier lets many wait for one barrier: the moment from which on what was written is durable.
package barrier

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
)

// Barrier makes what was written durable, for all that wait at once. It may be used by any number
// of goroutines.
type Barrier struct {
	make   func() (more bool, err error)
	logger *slog.Logger

	mu       sync.Mutex
	started  uint64 // barriers started and finished; they do not overlap
	finished uint64
	failedAt uint64 // the last barrier that failed, and how
	err      error
	touched  bool // something was committed since the last one started
	closed   bool
	done     chan struct{} // closed and replaced at the end of each
	wakeup   chan struct{}
}

// New returns a barrier that is made by calling f. Calls do not overlap. more says that another one is
// needed soon.
func New(f func() (more bool, err error), logger *slog.Logger) *Barrier {
	return &Barrier{make: f, logger: logger, done: make(chan struct{}), wakeup: make(chan struct{}, 1)}
}

// Touch notes that there is something to make durable.
func (b *Barrier) Touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touched = true
}

// Begun is how many barriers have started.
func (b *Barrier) Begun() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

// Ended is how many barriers have finished.
func (b *Barrier) Ended() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finished
}

// Request asks for a barrier soon, without waiting.
func (b *Barrier) Request() {
	select {
	case b.wakeup <- struct{}{}:
	default:
	}
}

// Wait returns when a barrier that started after the call has ended.
func (b *Barrier) Wait(ctx context.Context) error {
	b.mu.Lock()
	want := b.started + 1
	b.touched = true
	for b.finished < want {
		if b.closed {
			b.mu.Unlock()
			return store.ErrClosed
		}
		done := b.done
		b.mu.Unlock()
		b.Request()
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("wait for barrier: %w: %w", store.ErrTimeout, context.Cause(ctx))
		}
		b.mu.Lock()
	}
	defer b.mu.Unlock()
	if b.failedAt >= want {
		return b.err
	}
	return nil
}

// Close wakes everyone that waits.
func (b *Barrier) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	close(b.done)
	b.done = make(chan struct{})
}

// Run makes barriers until ctx ends: when asked, and at an interval when something was committed.
func (b *Barrier) Run(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.wakeup:
		case <-tick.C:
		}
		b.Make()
	}
}

// Make makes a barrier if there is something to make durable. It is for one goroutine at a time.
func (b *Barrier) Make() {
	b.mu.Lock()
	if !b.touched {
		b.mu.Unlock()
		return
	}
	b.touched = false
	b.started++
	n := b.started
	b.mu.Unlock()
	more, err := b.make()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = n
	if err != nil {
		if b.failedAt != n-1 || n == 1 { // not again and again
			b.logger.Error("store: barrier failed: what was saved since the last one is not durable", "err", err,
				"remedy", "free space in the file system of the store, or look for I/O errors in the kernel's log")
		}
		b.failedAt, b.err = n, err
	}
	b.touched = b.touched || more || err != nil
	close(b.done)
	b.done = make(chan struct{})
}
