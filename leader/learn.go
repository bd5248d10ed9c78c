package leader

import (
	"time"

	"github.com/kvconn/kvconn/connector"
)

// learn measures the engine with a step.
func (l *Leader) learn(m *connector.StepRequest, now time.Time) {
	var prefill, total int
	follows := false
	for i, r := range l.scheduled {
		s := &m.Scheduled[i]
		if r == nil {
			total += s.Count
			continue
		}
		decodes := s.Computed >= r.prompt
		if decodes {
			total += min(s.Count, 1) // decodes of several steps may be told together
		} else {
			total += s.Count
			prefill += s.Count
		}
		follows = follows || (r.step != 0 && r.step == l.steps-1 && s.Computed <= r.computed && (!decodes || s.Count <= 1))
		r.step, r.computed = l.steps, s.Computed+s.Count
	}
	// A step of many decodes says little of prefill, and a step with handoffs waits for them.
	if prefill < l.opts.MinLearnTokens || 4*prefill < 3*total || (l.opts.Handoff != nil && len(m.Allocs) > 0) {
		total = 0
	}
	l.prefill.Step(now, total, follows)
}
