package object

import (
	"context"
	"time"

	"github.com/kvconn/kvconn/store"
)

// readyEvery is how often Ready looks.
const readyEvery = 100 * time.Millisecond

// Ready waits until the tier knows what is in the bucket. It fails when ctx ends, or with [store.ErrClosed].
func (t *Tier) Ready(ctx context.Context) error {
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		if !t.follower.Good().IsZero() {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-t.ctx.Done():
			return store.ErrClosed
		}
	}
}
