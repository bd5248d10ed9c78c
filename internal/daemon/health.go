package daemon

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store/disk"
)

// Health says whether the daemon does what it is there for. Engines are safe either way:
// what cannot be loaded is recomputed.
type Health struct {
	OK bool `json:"ok"`
	// Reasons are what is wrong; empty if OK.
	Reasons []HealthReason `json:"reasons"`
	// Opening is nil once the store is open.
	Opening *OpeningStatus `json:"opening,omitempty"`
}

// HealthReason is one thing that is wrong.
type HealthReason struct {
	// Code is one of journal_failing, reads_failing, writes_failing, no_room,
	// engines_refused, writes_hung and disk_low.
	Code string `json:"code"`
	// Detail says what was seen, Remedy what a person can do.
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
	// SinceS is how long it has been so, in seconds.
	SinceS float64 `json:"since_s"`
}

const (
	// healthInterval is how often the store is looked at.
	healthInterval = time.Second
	// forgetAfter ends a fault that shows no more signs, because nothing is tried.
	forgetAfter = time.Minute
	// hungAfter is longer than a disk that works takes for a write.
	hungAfter = 30 * time.Second
	// lowAfter is longer than the store takes to give segments back when others fill the disk.
	lowAfter = 5 * time.Second
	// sayAgainAfter bounds the lines about a fault that comes and goes.
	sayAgainAfter = time.Minute
)

// observation is what faults are seen in.
type observation struct {
	disk.Stats
	// namespaces are how openings of namespaces ended.
	namespacesOpened, namespacesFailed uint64
}

// openings counts openings that succeeded and failed.
type openings struct{ opened, failed atomic.Uint64 }

func (o *openings) count(err error) {
	if err != nil {
		o.failed.Add(1)
	} else {
		o.opened.Add(1)
	}
}

// health judges the store by how its counters move. A single error is none: disks retry,
// and a flipped bit is one record.
type health struct {
	log *slog.Logger

	mu     sync.Mutex
	faults []*fault
	now    time.Time
}

func newHealth(log *slog.Logger) *health { return &health{log: log, faults: faults()} }

// fault is one thing that can be wrong.
type fault struct {
	reason HealthReason
	// healed is logged when it ends.
	healed string
	sign   sign
	// since is when it began, zero while all is well.
	since time.Time
	// said is when its beginning was logged last, leftOut how often it was not since then;
	// muted says that this one's was not.
	said    time.Time
	leftOut int
	muted   bool
}

// observe takes a reading of the counters into account. now must have a monotonic
// reading, so that a clock that jumps changes nothing.
func (h *health) observe(now time.Time, st *observation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = now
	for _, f := range h.faults {
		was := f.since
		f.since = f.sign.observe(now, st)
		switch {
		case was.IsZero() && !f.since.IsZero():
			f.sayBad(h.log, now)
		case !was.IsZero() && f.since.IsZero() && !f.muted:
			h.log.Info(f.healed, "code", f.reason.Code, "after", now.Sub(was).Round(time.Second).String())
		}
	}
}

// sayBad logs that the fault is there, unless that was logged a moment ago.
func (f *fault) sayBad(log *slog.Logger, now time.Time) {
	if f.muted = !f.said.IsZero() && now.Sub(f.said) < sayAgainAfter; f.muted {
		f.leftOut++
		return
	}
	args := []any{"code", f.reason.Code, "remedy", f.reason.Remedy}
	if f.leftOut > 0 {
		args = append(args, "left_out", f.leftOut)
	}
	log.Error(f.reason.Detail, args...)
	f.said, f.leftOut = now, 0
}

// health returns the verdict of the last observation.
func (h *health) health() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Health{Reasons: []HealthReason{}}
	for _, f := range h.faults {
		if !f.since.IsZero() {
			r := f.reason
			r.SinceS = h.now.Sub(f.since).Seconds()
			out.Reasons = append(out.Reasons, r)
		}
	}
	out.OK = len(out.Reasons) == 0
	return out
}
