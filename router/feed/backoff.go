package feed

import (
	"context"
	"time"
)

// backoff is a wait that doubles from least to most.
type backoff struct{ least, most, next time.Duration }

// reset begins anew with the shortest wait.
func (b *backoff) reset() { b.next = 0 }

// take returns the next wait.
func (b *backoff) take() time.Duration {
	b.next = min(max(b.least, b.next), b.most)
	d := b.next
	b.next *= 2
	return d
}

// sleep waits for d or for ctx's end, and reports false for the latter.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
