package disk

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
)

// barrier makes what is written durable, for everyone who waits at once: payloads first,
// then the journal.
type barrier struct {
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

func newBarrier() *barrier {
	return &barrier{done: make(chan struct{}), wakeup: make(chan struct{}, 1)}
}

// touch notes that there is something to make durable.
func (b *barrier) touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.touched = true
}

// begun and ended are how many barriers have started and finished.
func (b *barrier) begun() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.started
}

func (b *barrier) ended() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finished
}

// request asks for a barrier soon, without waiting.
func (b *barrier) request() {
	select {
	case b.wakeup <- struct{}{}:
	default:
	}
}

// wait returns when a barrier that started after the call has ended.
func (b *barrier) wait(ctx context.Context) error {
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
		b.request()
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
func (b *barrier) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	close(b.done)
	b.done = make(chan struct{})
}

// runBarriers makes barriers until ctx ends: when asked, and at an interval when
// something was committed.
func (s *Store) runBarriers(ctx context.Context) {
	defer s.background.Done()
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
	freed := s.space.takePending()
	err := s.makeDurable()
	s.space.release(freed, err == nil)
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
	} else if s.space.anyPending() {
		b.touched = true
	}
	close(b.done)
	b.done = make(chan struct{})
}

func (p *space) anyPending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending) > 0
}

// takeDirty returns the segments written to since the last call.
func (p *space) takeDirty() []*segment {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []*segment
	for _, g := range p.segments {
		if g.dirty.Swap(false) {
			out = append(out, g)
		}
	}
	return out
}

// syncers is how many files are synced at one time: the kernel merges flushes of the
// device that are asked for together.
const syncers = 8

// syncSegments makes the payloads of segments durable.
func (s *Store) syncSegments(dirty []*segment) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(dirty))
	for range min(syncers, len(dirty)) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(dirty); i = int(next.Add(1)) - 1 {
				if err := dirty[i].file.Datasync(); err != nil {
					dirty[i].dirty.Store(true)
					errs[i] = fmt.Errorf("%w: %w", store.ErrIO, err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// makeDurable is the barrier itself.
func (s *Store) makeDurable() error {
	if err := s.syncSegments(s.space.takeDirty()); err != nil {
		// Without the payloads the index entries must not be promised either.
		return err
	}
	if err := s.syncJournal(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrIO, err)
	}
	return nil
}
