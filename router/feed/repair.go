package feed

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/internal/backoff"
)

// maxRebuildInterval is how rarely a rank is rebuilt whose events stay bad.
const maxRebuildInterval = time.Minute

// repair says why a rank has to be put right, and when: while its events stay bad, or its replays fail, that is
// tried ever more rarely, since replays cost the engine time. Each has a pause of its own: replays that failed while
// the engine was busy must not keep a rank waiting after one has succeeded.
type repair struct {
	bad    trouble // what is known may be wrong
	failed trouble // what is known is true, and a replay did not bring the rest
}

// trouble is what a replay has to put right.
type trouble struct {
	why   error // nil if there is none
	at    time.Time
	pause backoff.Backoff
}

// tried begins the pause before the next try.
func (t *trouble) tried(now time.Time) { t.at = now.Add(t.pause.Take()) }

// take returns why it is time for a try, or nil, and forgets it.
func (t *trouble) take(now time.Time) (why error) {
	if now.Before(t.at) {
		return nil
	}
	why, t.why = t.why, nil
	return why
}

func newRepair(least time.Duration) repair {
	t := trouble{pause: backoff.Backoff{Least: least, Most: maxRebuildInterval}}
	return repair{bad: t, failed: t}
}

// why says what is wrong, nil if nothing is.
func (r *repair) why() error { return cmp.Or(r.bad.why, r.failed.why) }

// due returns why the rank has to be put right now, or nil, and whether what is known may be wrong.
func (r *repair) due(now time.Time) (why error, bad bool) {
	since := now.Sub(r.bad.at)
	if why := r.bad.take(now); why != nil {
		if since > maxRebuildInterval {
			r.bad.pause.Reset()
		}
		r.bad.tried(now)
		return why, true
	}
	return r.failed.take(now), false // its pause begins when a replay has failed
}

// connected has replays that failed tried at once: that they failed on another connection is no reason not to.
func (r *repair) connected() {
	r.failed.at = time.Time{}
	r.failed.pause.Reset()
}

// replayFailed has the replay tried again after a pause.
func (r *repair) replayFailed(err error, now time.Time) {
	r.failed.why = fmt.Errorf("the replay failed: %w", err)
	r.failed.tried(now)
}

// replayPauses reports whether a replay failed a short while ago.
func (r *repair) replayPauses(now time.Time) bool {
	return r.failed.why != nil && now.Before(r.failed.at)
}

// replayed notes that a replay has succeeded, and whether nothing is left that another could bring.
func (r *repair) replayed(all bool) {
	r.failed.pause.Reset()
	if all {
		r.failed.why = nil
	}
}

// forgotten notes that the rank is cleared: nothing that was wrong is known any more.
func (r *repair) forgotten() { r.bad.why = nil }
