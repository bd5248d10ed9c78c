package daemon

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
)

// Health says whether the daemon does what it is there for. Engines are safe either way:
// what cannot be loaded is recomputed.
type Health struct {
	OK bool `json:"ok"`
	// Reasons are what is wrong; empty if OK.
	Reasons []HealthReason `json:"reasons"`
}

// HealthReason is one thing that is wrong.
type HealthReason struct {
	// Code is one of journal_failing, reads_failing, writes_failing, no_room,
	// engines_refused and writes_hung.
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
	// forgetAfter ends a fault of which nothing more is seen, because nothing is tried.
	forgetAfter = time.Minute
	// hungAfter is longer than a disk that works takes for a write.
	hungAfter = 30 * time.Second
)

// fault is one way in which a disk or store fails: persistent is the number of errors
// without as many successes that make it so.
type fault struct {
	reason             HealthReason
	persistent         uint64
	errors, successes  func(*observation) uint64
	lastErrors, lastOK uint64
	// count adds up errors since the last good interval; since and seen are the first and
	// the last of them.
	count       uint64
	since, seen time.Time
}

// observation is what faults are seen in.
type observation struct {
	store.Stats
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
	hung   hungWrites
	now    time.Time
}

func newHealth(log *slog.Logger) *health { return &health{log: log, faults: faults()} }

func faults() []*fault {
	return []*fault{
		{
			reason: HealthReason{
				Code: "journal_failing", Detail: "barriers fail: what is saved does not become durable",
				Remedy: "the log names the cause: free space or repair the disk, then restart the daemon",
			},
			persistent: 3,
			errors:     func(s *observation) uint64 { return s.BarrierErrors },
			successes:  func(s *observation) uint64 { return s.Barriers - s.BarrierErrors },
		},
		{
			reason: HealthReason{
				Code: "reads_failing", Detail: "reads from the disk fail, do not end in time or return wrong bytes: engines recompute",
				Remedy: "look for I/O errors in the kernel's log and replace the disk, or give the daemon another directory",
			},
			persistent: 3,
			errors:     func(s *observation) uint64 { return s.ReadErrors + s.ReadTimeouts + s.Corrupt },
			successes:  func(s *observation) uint64 { return s.Reads },
		},
		{
			reason: HealthReason{
				Code: "writes_failing", Detail: "the disk refuses writes: nothing is saved",
				Remedy: "is the file system full or mounted read-only? Look for I/O errors in the kernel's log",
			},
			persistent: 3,
			errors:     func(s *observation) uint64 { return s.WriteErrors },
			successes:  func(s *observation) uint64 { return s.Writes },
		},
		{
			reason: HealthReason{
				Code: "no_room", Detail: "saves find no room: nothing is saved",
				Remedy: "free space in the file system, or lower max_bytes below what is free; the log says why no segment can be made",
			},
			persistent: 16,
			errors:     func(s *observation) uint64 { return s.WritesRefused },
			successes:  func(s *observation) uint64 { return s.Writes },
		},
		{
			reason: HealthReason{
				Code: "engines_refused", Detail: "the store cannot take up the engines' models: they go on without cache",
				Remedy: "is the file system full or mounted read-only? The log names the cause",
			},
			persistent: 3,
			errors:     func(s *observation) uint64 { return s.namespacesFailed },
			successes:  func(s *observation) uint64 { return s.namespacesOpened },
		},
	}
}

// healthCodes lists the codes that there are.
func healthCodes() []string {
	var codes []string
	for _, f := range faults() {
		codes = append(codes, f.reason.Code)
	}
	return append(codes, hungReason().Code)
}

// hungWrites notices writes that neither end nor fail.
type hungWrites struct {
	ended uint64
	since time.Time
}

func (h *hungWrites) observe(now time.Time, st *observation) {
	ended := st.Writes + st.WriteErrors + st.WritesRefused + st.WritesOfSame
	if st.WriteInFlightBytes == 0 || ended != h.ended || h.since.IsZero() {
		h.ended, h.since = ended, now
	}
}

// observe takes a reading of the counters into account. now must have a monotonic
// reading, so that a clock that jumps changes nothing.
func (h *health) observe(now time.Time, st *observation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = now
	for _, f := range h.faults {
		was := f.bad()
		f.observe(now, st)
		switch {
		case f.bad() && !was:
			h.log.Error(f.reason.Detail, "code", f.reason.Code, "errors", f.count, "remedy", f.reason.Remedy)
		case was && !f.bad():
			h.log.Info("no longer so: "+f.reason.Detail, "code", f.reason.Code)
		}
	}
	was := h.hung.bad(h.now)
	h.hung.observe(now, st)
	switch r := hungReason(); {
	case h.hung.bad(now) && !was:
		h.log.Error(r.Detail, "code", r.Code, "remedy", r.Remedy)
	case was && !h.hung.bad(now):
		h.log.Info("no longer so: "+r.Detail, "code", r.Code)
	}
}

func (h *hungWrites) bad(now time.Time) bool {
	return !h.since.IsZero() && now.Sub(h.since) >= hungAfter
}

func hungReason() HealthReason {
	return HealthReason{
		Code: "writes_hung", Detail: "writes to the disk do not end",
		Remedy: "look for a hung device or network file system in the kernel's log; saves are dropped meanwhile",
	}
}

func (f *fault) bad() bool { return f.count >= f.persistent }

func (f *fault) observe(now time.Time, st *observation) {
	e, ok := f.errors(st), f.successes(st)
	newErrors, newOK := e-f.lastErrors, ok-f.lastOK
	f.lastErrors, f.lastOK = e, ok
	switch {
	case newOK > 0 && newOK >= newErrors:
		f.count = 0
	case newErrors > 0:
		if f.count == 0 {
			f.since = now
		}
		f.count += newErrors
		f.seen = now
	case f.count > 0 && now.Sub(f.seen) >= forgetAfter:
		f.count = 0
	}
}

// health returns the verdict of the last observation.
func (h *health) health() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := Health{Reasons: []HealthReason{}}
	for _, f := range h.faults {
		if f.bad() {
			r := f.reason
			r.SinceS = h.now.Sub(f.since).Seconds()
			out.Reasons = append(out.Reasons, r)
		}
	}
	if h.hung.bad(h.now) {
		r := hungReason()
		r.SinceS = h.now.Sub(h.hung.since).Seconds()
		out.Reasons = append(out.Reasons, r)
	}
	out.OK = len(out.Reasons) == 0
	return out
}
