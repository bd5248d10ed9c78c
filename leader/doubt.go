package leader

import "time"

// doubt keeps offers back after loads of ranks on other nodes have failed in a row. A dead daemon there, or a disk that
// hangs, shows in no tier here, and each load that fails costs its request the time until it did. The zero value has no
// doubt.
type doubt struct {
	failures int
	// step is the newest step at the last failure that counted: loads that were planned by then are the same failure.
	step  uint64
	until time.Time
}

const (
	// doubtAfter failures in a row offers pause, for minDoubt at first and twice as long after each further one.
	doubtAfter         = 3
	minDoubt, maxDoubt = time.Second, 30 * time.Second
)

// failed counts a load that was planned in a step.
func (d *doubt) failed(planned, step uint64, now time.Time) {
	if d.failures > 0 && planned <= d.step {
		return
	}
	d.failures, d.step = d.failures+1, step
	if d.failures >= doubtAfter {
		d.until = now.Add(min(maxDoubt, minDoubt<<min(d.failures-doubtAfter, 10)))
	}
}

// judge takes in how a request's loads ended; bad is the first of its blocks that failed, or below 0. A block that the
// tiers here still have failed elsewhere.
func (l *Leader) judge(r *request, bad int) {
	switch {
	case len(r.loads) == 0 || !l.elsewhere():
	case bad < 0:
		l.doubt = doubt{}
	case bad < len(r.keys):
		l.at = append(l.at[:0], false)
		shards := l.prefix
		if len(shards) == 0 {
			shards = l.groups[0].Shards
		}
		if l.have.Blocks(shards, r.keys[bad:bad+1], l.at); l.at[0] {
			l.doubt.failed(r.loads[len(r.loads)-1].step, l.steps, l.opts.Now())
		}
	}
}

// elsewhere reports whether ranks of the engine are on other nodes.
func (h *hits) elsewhere() bool {
	here := h.here.Load()
	return here != nil && here.part
}
