package feed

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// maxRebuildInterval is how rarely a rank is rebuilt whose events stay bad.
const maxRebuildInterval = time.Minute

// repair says why a rank has to be rebuilt, and when: while its events stay bad, it is rebuilt ever more
// rarely, since replays cost the engine time.
type repair struct {
	why   error // nil if no rebuild is due
	at    time.Time
	pause backoff
}

// due returns why the rank has to be rebuilt now, or nil.
func (r *repair) due(now time.Time) (why error) {
	if r.why == nil || now.Before(r.at) {
		return nil
	}
	if now.Sub(r.at) > maxRebuildInterval {
		r.pause.reset()
	}
	r.at = now.Add(r.pause.take())
	why, r.why = r.why, nil
	return why
}

// replayFailed has the replay tried again after a pause.
func (r *repair) replayFailed(err error, now time.Time) {
	r.why = fmt.Errorf("%w: %w", errReplay, err)
	r.at = now.Add(r.pause.take())
}

// replayPauses reports whether a replay failed a short while ago.
func (r *repair) replayPauses(now time.Time) bool {
	return errors.Is(r.why, errReplay) && now.Before(r.at)
}

// replayed notes that a replay has brought everything.
func (r *repair) replayed() {
	if errors.Is(r.why, errReplay) {
		r.why = nil
	}
}

// backoff is a wait that doubles from least to most.
type backoff struct{ least, most, next time.Duration }

func (b *backoff) reset() { b.next = 0 }

// ended notes that a connection has ended. If it began long ago the next attempt is made soon; connections that
// end as soon as they are made become as rare as attempts that fail.
func (b *backoff) ended(began time.Time) {
	if time.Since(began) > b.most {
		b.reset()
	}
}

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
