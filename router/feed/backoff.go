package feed

import (
	"context"
	"time"
)

// backoff is a wait that doubles from least to most.
type backoff struct{ least, most, next time.Duration }

// reset makes the next wait the shortest again.
func (b *backoff) reset() { b.next = 0 }

// take returns the next wait.
func (b *backoff) take() time.Duration {
	b.next = min(max(b.least, b.next), b.most)
	d := b.next
	b.next *= 2
	return d
}

// wait waits, and reports false if ctx ends first.
func (b *backoff) wait(ctx context.Context) bool { return sleep(ctx, b.take()) }

// sleep waits for d, and reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
