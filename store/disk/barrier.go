package disk

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvconn/kvconn/store"
)

// durability makes what is written durable, for everyone who waits at once: payloads first,
// then the journal.
type durability struct {
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

func newBarrier() *durability {
	return &durability{done: make(chan struct{}), wakeup: make(chan struct{}, 1)}
}

// Touch notes that there is something to make durable.
func (b *durability) Touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touched = true
}

// Begun and Ended are how many barriers have started and finished.
func (b *durability) Begun() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

func (b *durability) Ended() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finished
}

// Request asks for a barrier soon, without waiting.
func (b *durability) Request() {
	select {
	case b.wakeup <- struct{}{}:
	default:
	}
}

// Wait returns when a barrier that started after the call has ended.
func (b *durability) Wait(ctx context.Context) error {
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

// close wakes everyone who waits.
func (b *durability) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	close(b.done)
	b.done = make(chan struct{})
}

// runBarriers makes barriers until ctx ends: when asked, and at an interval when
// something was committed.
func (s *Store) runBarriers(ctx context.Context) {
	tick := time.NewTicker(s.opts.BarrierInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.barrier.wakeup:
		case <-tick.C:
		}
		s.runBarrier()
	}
}

func (s *Store) runBarrier() {
	b := s.barrier
	b.mu.Lock()
	if !b.touched {
		b.mu.Unlock()
		return
	}
	b.touched = false
	b.started++
	n := b.started
	b.mu.Unlock()
	freed := s.space.TakePending()
	err := s.makeDurable()
	s.space.Release(freed, err == nil)
	s.count.barriers.Add(1)
	if err != nil {
		s.count.barrierErrors.Add(1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = n
	if err != nil {
		if b.failedAt != n-1 || n == 1 { // not again and again
			s.opts.Logger.Error("store: barrier failed: what was saved since the last one is not durable", "err", err,
				"remedy", "free space in the file system of the store, or look for I/O errors in the kernel's log")
		}
		b.failedAt, b.err, b.touched = n, err, true
	} else if s.space.AnyPending() {
		b.touched = true
	}
	close(b.done)
	b.done = make(chan struct{})
}

// makeDurable is the barrier itself.
func (s *Store) makeDurable() error {
	if err := s.space.Sync(); err != nil {
		// Without the payloads the index entries must not be promised either.
		return err
	}
	if err := s.state.SyncJournal(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	return nil
}
