package feed

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// maxRebuildInterval is how rarely a rank is rebuilt whose events stay bad.
const maxRebuildInterval = time.Minute

// repair says why a rank has to be rebuilt, and when: while its events stay bad, or its replays fail, that is
// tried ever more rarely, since replays cost the engine time. The two have a pause each: replays that failed while
// the engine was busy must not keep a rank waiting after one has succeeded.
type repair struct {
	why         error // nil if no rebuild is due
	bad, failed pace
}

// pace says when something may be tried again.
type pace struct {
	at    time.Time
	pause backoff
}

// tried begins the pause before the next try.
func (p *pace) tried(now time.Time) { p.at = now.Add(p.pause.take()) }

func newRepair(least time.Duration) repair {
	p := pace{pause: backoff{least: least, most: maxRebuildInterval}}
	return repair{bad: p, failed: p}
}

// due returns why the rank has to be rebuilt now, or nil.
func (r *repair) due(now time.Time) (why error) {
	p := &r.bad
	if errors.Is(r.why, errReplay) {
		p = &r.failed
	}
	if r.why == nil || now.Before(p.at) {
		return nil
	}
	if p == &r.bad { // the other pause begins when a replay has failed
		if now.Sub(p.at) > maxRebuildInterval {
			p.pause.reset()
		}
		p.tried(now)
	}
	why, r.why = r.why, nil
	return why
}

// connected has what is due tried at once: what was wrong on another connection is no reason not to.
func (r *repair) connected() { r.bad.at, r.failed.at = time.Time{}, time.Time{} }

// replayFailed has the replay tried again after a pause.
func (r *repair) replayFailed(err error, now time.Time) {
	r.why = fmt.Errorf("%w: %w", errReplay, err)
	r.failed.tried(now)
}

// replayPauses reports whether a replay failed a short while ago.
func (r *repair) replayPauses(now time.Time) bool {
	return errors.Is(r.why, errReplay) && now.Before(r.failed.at)
}

// replayed notes that a replay has succeeded, and whether the rank is whole, so that none is due.
func (r *repair) replayed(whole bool) {
	r.failed.pause.reset()
	if whole && errors.Is(r.why, errReplay) {
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
