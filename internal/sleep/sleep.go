// Package sleep waits for what goes on until a context ends.
package sleep

import (
	"context"
	"time"
)

// For waits until d has passed, kick has a value, or ctx ends. It reports whether ctx lasts. A nil kick never has a value.
func For(ctx context.Context, d time.Duration, kick <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-kick:
	case <-timer.C:
	}
	return ctx.Err() == nil
}
