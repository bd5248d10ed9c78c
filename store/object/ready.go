package object

import (
	"context"

	"github.com/kvconn/kvconn/store"
)

// Ready waits until the tier knows what is in the bucket. It fails when ctx ends, or with [store.ErrClosed].
func (t *Tier) Ready(ctx context.Context) error {
	select {
	case <-t.follower.Known():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.ctx.Done():
		return store.ErrClosed
	}
}
