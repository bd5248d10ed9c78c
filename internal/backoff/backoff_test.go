package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitsDoubleUntilOneIsTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{Least: time.Second, Most: 5 * time.Second}
		for range 2 {
			for n, want := range []time.Duration{1, 2, 4, 5, 5} {
				began := time.Now()
				if !b.Wait(t.Context()) || time.Since(began) != want*time.Second {
					t.Errorf("wait %d took %v", n, time.Since(began))
				}
			}
			began := time.Now()
			time.Sleep(5 * time.Second)
			if b.Ended(began); b.next == 0 {
				t.Error("a short connection ends the long waits")
			}
			time.Sleep(time.Nanosecond)
			b.Ended(began)
		}
	})
}

func TestAContextEndsAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b := Backoff{}
		minute := Backoff{Least: time.Minute, Most: time.Minute}
		if !b.Wait(ctx) || minute.Wait(ctx) || ctx.Err() == nil || b.Wait(ctx) {
			t.Error("the context does not count")
		}
	})
}
