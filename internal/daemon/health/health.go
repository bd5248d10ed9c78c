// Package health judges a daemon by how the counters of its store move.
package health

import (
	"log/slog"
	"sync"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/store/disk"
)

// State says whether the daemon does its work. Engines are safe either way: they recompute
// blocks that cannot be loaded.
type State struct {
	OK bool `json:"ok"`
	// Reasons are what is wrong; empty if OK.
	Reasons []Reason `json:"reasons"`
	// Opening is nil once the store is open.
	Opening *opening.Status `json:"opening,omitempty"`
}

// Reason is one thing that is wrong.
type Reason struct {
	// Code is one of journal_failing, reads_failing, writes_failing, no_room,
	// engines_refused, writes_hung and disk_low.
	Code string `json:"code"`
	// Detail says what was seen, Remedy what a person can do.
	Detail string `json:"detail"`
	Remedy string `json:"remedy"`
	// SinceS is how long it has been so, in seconds.
	SinceS float64 `json:"since_s"`
}

// Interval is how often [Monitor.Observe] is to be called.
const Interval = time.Second

const (
	// forgetAfter ends a fault that shows no more signs, because nothing is tried.
	forgetAfter = time.Minute
	// hungAfter is longer than a disk that works takes for a write.
	hungAfter = 30 * time.Second
	// lowAfter is longer than the store takes to give segments back when others fill the disk.
	lowAfter = 5 * time.Second
	// sayAgainAfter bounds the lines about a fault that comes and goes.
	sayAgainAfter = time.Minute
)

// Observation is a reading of the counters that faults show in.
type Observation struct {
	disk.Stats
	// NamespacesOpened and NamespacesFailed count how openings of namespaces ended.
	NamespacesOpened, NamespacesFailed uint64
}

// Monitor watches for faults. A single error is no fault: disks retry, and a flipped bit
// costs one record. It is safe for concurrent use.
type Monitor struct {
	log *slog.Logger

	mu     sync.Mutex
	faults []*fault
	now    time.Time
}

// New returns a monitor that logs when a fault begins and ends.
func New(log *slog.Logger) *Monitor { return &Monitor{log: log, faults: faults()} }

// fault is one thing that can be wrong.
type fault struct {
	reason Reason
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

// Observe takes a reading of the counters into account. now must have a monotonic
// reading, so that a clock that jumps changes nothing.
func (m *Monitor) Observe(now time.Time, st *Observation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now = now
	for _, f := range m.faults {
		was := f.since
		f.since = f.sign(now, st)
		switch {
		case was.IsZero() && !f.since.IsZero():
			f.sayBad(m.log, now)
		case !was.IsZero() && f.since.IsZero() && !f.muted:
			m.log.Info(f.healed, "code", f.reason.Code, "after", now.Sub(was).Round(time.Second).String())
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

// State returns the verdict of the last observation.
func (m *Monitor) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := State{Reasons: []Reason{}}
	for _, f := range m.faults {
		if !f.since.IsZero() {
			r := f.reason
			r.SinceS = m.now.Sub(f.since).Seconds()
			out.Reasons = append(out.Reasons, r)
		}
	}
	out.OK = len(out.Reasons) == 0
	return out
}
