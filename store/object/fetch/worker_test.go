package fetch

import (
	"testing"
	"testing/synctest"

	"github.com/kvconn/kvconn/store/object/bucket"
)

// Ranges that come one after the other are read by one worker; those of one call by as many as there is room for.
func TestWorkersAreUsedAgain(t *testing.T) {
	inBubble(t, func(_ *bucket.Options, o *Options) { o.Connections = 3 }, func(t *testing.T, b *bench) {
		resting := func() int {
			synctest.Wait()
			b.Fetcher.mu.Lock()
			defer b.Fetcher.mu.Unlock()
			return len(b.resting)
		}
		for range 5 {
			ops := opsOf(b.put(1, small)...)
			b.read(t.Context(), ops...)
			want(t, nil, ops...)
			if n := resting(); n != 1 {
				t.Fatalf("%d workers", n)
			}
		}
		ops := opsOf(b.put(1, small)...)
		for range 9 {
			ops = append(ops, opsOf(b.put(1, small)...)...)
		}
		b.read(t.Context(), ops...)
		want(t, nil, ops...)
		if n := resting(); n < 1 || n > 3 {
			t.Errorf("%d workers for 3 connections", n)
		}
		b.Close()
		if n := resting(); n != 0 {
			t.Errorf("%d workers after the end", n)
		}
	})
}
