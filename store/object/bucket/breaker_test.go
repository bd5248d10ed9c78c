package bucket

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/s3mem"
	"github.com/kvconn/kvconn/internal/testkit/s3proxy"
)

func refusing(status int, code string) s3proxy.Clause {
	return s3proxy.Clause{Do: s3proxy.Effect{Status: status, Code: code}}
}

func TestBreakerOpensAfterFailuresInARow(t *testing.T) {
	for _, c := range []struct {
		clause s3proxy.Clause
		opens  bool
	}{
		{refusing(503, "SlowDown"), true}, {refusing(500, "InternalError"), true}, {refusing(403, "AccessDenied"), true},
		{refusing(404, "NoSuchBucket"), true}, {refusing(403, "RequestTimeTooSkewed"), true}, {s3proxy.Clause{Do: s3proxy.Effect{Reset: true}}, true},
		{refusing(404, "NoSuchKey"), false}, {refusing(416, "InvalidRange"), false}, {refusing(501, "NotImplemented"), false},
		{s3proxy.Clause{Do: s3proxy.Effect{Cut: 1}}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts = 1 })
			b.mustWrite(t, "a", "0123456789")
			b.proxy.Play(c.clause)
			for range maxRow - 1 {
				_, _, _ = b.read(t.Context(), "a", 0, 0)
			}
			if !b.Available() {
				t.Errorf("%+v: open too early", c.clause.Do)
			}
			_, _, _ = b.read(t.Context(), "a", 0, 0)
			if b.Available() == c.opens || b.Stats().BreakerOpen != c.opens {
				t.Errorf("%+v: available: %v", c.clause.Do, b.Available())
			}
			before := b.Stats()
			_, _, err := b.read(t.Context(), "a", 0, 0)
			if c.opens {
				want(t, err, ErrOpen)
				if now := b.Stats(); now.Requests["get"] != before.Requests["get"] || now.Errors["open"] != 1 {
					t.Errorf("%+v: sent a request: %+v", c.clause.Do, now)
				}
			}
		})
	}
}

// An outage is tried less and less often, by one request at a time, logged once, and over with the
// first answer.
func TestBreakerTriesAndCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts = 1 })
		b.mustWrite(t, "a", "1")
		b.proxy.Play(refusing(500, "InternalError"))
		began := time.Now()
		for time.Since(began) < 10*time.Minute {
			var callers sync.WaitGroup
			for range 3 {
				callers.Go(func() { _, _, _ = b.read(t.Context(), "a", 0, 0) })
			}
			callers.Wait()
			time.Sleep(100 * time.Millisecond)
		}
		// The row, 5 tries while the pause doubles, and one in about 30 s.
		if n := b.Stats().Requests["get"]; n < 5+5+15 || n > 5+3+6+26 {
			t.Errorf("%d requests", n)
		}
		b.proxy.Stop()
		for !b.Available() {
			_, _, _ = b.read(t.Context(), "a", 0, 0)
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took > 10*time.Minute+40*time.Second {
			t.Errorf("open for %v", took)
		}
		if got, _, err := b.read(t.Context(), "a", 0, 0); err != nil || got != "1" {
			t.Errorf("%q, %v", got, err)
		}
		log := b.log.String()
		if strings.Count(log, "level=WARN") != 1 || strings.Count(log, "works again") != 1 || !strings.Contains(log, "remedy=") {
			t.Error(log)
		}
		noSecret(t, log)
	})
}

func TestBreakerOpensWhenHalfFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts = 1 })
		b.mustWrite(t, "a", "1")
		b.proxy.Play(s3proxy.Clause{Every: 2, Do: s3proxy.Effect{Reset: true}})
		n := 0
		for ; b.Available() && n < 100; n++ {
			_, _, _ = b.read(t.Context(), "a", 0, 0)
		}
		if n < window-1 || n > window+1 {
			t.Errorf("open after %d", n)
		}
	})
}

// What failed before does not count against a bucket that works again.
func TestBreakerDoesNotOpenAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts = 1 })
		b.mustWrite(t, "a", "1")
		reset := s3proxy.Effect{Reset: true}
		b.proxy.Play(s3proxy.Clause{Every: 3, Do: reset}, s3proxy.Clause{After: 1, Every: 3, Do: reset})
		for range window - 4 { // half of a window fails
			_, _, _ = b.read(t.Context(), "a", 0, 0)
		}
		b.proxy.Stop()
		for range window {
			if _, _, err := b.read(t.Context(), "a", 0, 0); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// One object in an archive says nothing of the others.
func TestArchivedObjectsDoNotOpenTheBreaker(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "a", "1")
		b.proxy.Play(refusing(403, "InvalidObjectState"))
		for range 2 * window {
			_, _, err := b.read(t.Context(), "a", 0, 0)
			want(t, err, ErrArchived)
		}
	})
}

// A bucket that hangs is not asked after two seconds, while requests that hang go to their deadlines.
func TestBreakerOpensInSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "a", "1")
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Minute}})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var load sync.WaitGroup
		load.Go(func() {
			_, _, err := b.read(ctx, "a", 0, 0)
			want(t, err, context.DeadlineExceeded)
		})
		time.Sleep(defaultSilence - time.Millisecond)
		if !b.Available() {
			t.Error("open too early")
		}
		time.Sleep(2 * time.Millisecond)
		if b.Available() {
			t.Error("closed after two seconds of silence")
		}
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, ErrOpen)
		load.Wait()
		if time.Since(began) != 5*time.Second {
			t.Errorf("after %v", time.Since(began))
		}
		noSecret(t, b.log.String())
	})
}

// One that was only slow is back with its first byte.
func TestBreakerClosesWhenSilenceEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "a", "1")
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: 3 * time.Second}})
		var load sync.WaitGroup
		load.Go(func() {
			if got, _, err := b.read(t.Context(), "a", 0, 0); err != nil || got != "1" {
				t.Errorf("%q, %v", got, err)
			}
		})
		time.Sleep(2500 * time.Millisecond)
		if b.Available() {
			t.Error("closed in silence")
		}
		load.Wait()
		if !b.Available() {
			t.Error("open after an answer")
		}
	})
}

// A body that its reader leaves lying is no silence of the bucket.
func TestSlowReadersAreNoSilence(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.mustWrite(t, "a", strings.Repeat("0123456789", 100))
		body, err := b.Get(t.Context(), "a", 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		for range 3 {
			if _, err := io.ReadFull(body, make([]byte, 300)); err != nil {
				t.Error(err)
			}
			time.Sleep(30 * time.Second)
		}
		if _, err := io.ReadAll(body); err != nil || !b.Available() {
			t.Errorf("%v, available: %v", err, b.Available())
		}
		if _, err := body.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	})
}

func TestATrialWhoseCallerLeavesSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, s3mem.Options{}, func(o *Options) { o.Attempts = 1 })
		b.mustWrite(t, "a", "1")
		b.proxy.Play(refusing(500, "InternalError"))
		for b.Available() {
			_, _, _ = b.read(t.Context(), "a", 0, 0)
		}
		b.proxy.Play(s3proxy.Clause{Do: s3proxy.Effect{Delay: time.Second}})
		time.Sleep(2 * firstPause)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, _, err := b.read(ctx, "a", 0, 0)
		want(t, err, context.DeadlineExceeded)
		if _, _, err = b.read(t.Context(), "a", 0, 0); err != nil || !b.Available() {
			t.Errorf("%v: available: %v", err, b.Available())
		}
	})
}

func TestPausesAreSpread(t *testing.T) {
	for range 1000 {
		if d := spread(time.Second); d < 800*time.Millisecond || d > 1200*time.Millisecond+1 {
			t.Fatal(d)
		}
		if d := backoff(1); d < firstBackoff/2 || d > firstBackoff {
			t.Fatal(d)
		}
		if d := backoff(50); d < lastBackoff/2 || d > lastBackoff {
			t.Fatal(d)
		}
	}
}
