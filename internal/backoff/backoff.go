// Package backoff has the waits between attempts that fail.
package backoff

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/internal/sleep"
)

// Backoff is a wait that doubles from Least to Most while what it is for goes on failing. It is not for use by several
// goroutines.
type Backoff struct {
	Least, Most time.Duration
	next        time.Duration
}

// Reset has the next wait be the least.
func (b *Backoff) Reset() { b.next = 0 }

// Ended notes that a connection has ended. If it began long ago the next attempt is made soon; connections that
// end as soon as they are made become as rare as attempts that fail.
func (b *Backoff) Ended(began time.Time) {
	if time.Since(began) > b.Most {
		b.Reset()
	}
}

// Take returns the next wait.
func (b *Backoff) Take() time.Duration {
	b.next = min(max(b.Least, b.next), b.Most)
	d := b.next
	b.next *= 2
	return d
}

// Wait waits for what Take returns, and reports false if ctx ends first.
func (b *Backoff) Wait(ctx context.Context) bool { return sleep.For(ctx, b.Take(), nil) }
