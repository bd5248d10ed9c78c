package sleep

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		kick := make(chan struct{}, 1)
		for _, c := range []struct {
			name  string
			begin func()
			lasts bool
			took  time.Duration
		}{
			{"until the time has passed", func() {}, true, time.Second},
			{"until it is kicked", func() { kick <- struct{}{} }, true, 0},
			{"until the context ends", cancel, false, 0},
			{"not at all", func() { kick <- struct{}{} }, false, 0},
		} {
			c.begin()
			began := time.Now()
			if lasts := For(ctx, time.Second, kick); lasts != c.lasts || time.Since(began) != c.took {
				t.Errorf("%s: %t after %v", c.name, lasts, time.Since(began))
			}
		}
	})
}
