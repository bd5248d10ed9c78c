package leader

import (
	"time"

	"github.com/kvconn/kvconn/connector"
)

// prefillSpeed measures an engine's prefill speed from the times of its steps. A step counts only
// if the engine was not idle before the next two steps: one of its requests continues in each of
// them. Some clients leave out steps in which a decoding request fills no block (vLLM's): a request
// that has come further since, or several tokens at once, does not count. Because an engine may
// call for step n+1 while step n runs, the step's time is the longer of the two intervals that
// follow it.
type prefillSpeed struct {
	// tokens and seconds are sums in which each step weighs less than the next.
	tokens, seconds float64
	samples         int

	at time.Time // the last step
	// last are the tokens of the last step, before those of the one before it and
	// interval the time between them; 0 where a step does not count.
	last, before int
	interval     time.Duration
}

const (
	// learnWeight multiplies a step's weight with each newer one.
	learnWeight = 0.8
	// minSamples are needed before the speed is used: the first steps of an engine warm up.
	minSamples = 3
)

// step takes in a step of that many tokens, 0 if it does not count. follows says that the engine
// was busy since the step before.
func (e *prefillSpeed) step(now time.Time, tokens int, follows bool) {
	interval := now.Sub(e.at)
	e.at = now
	if !follows {
		e.last, e.before = tokens, 0
		return
	}
	if took := max(interval, e.interval); e.before > 0 && took > 0 {
		e.add(e.before, took.Seconds())
	}
	e.before, e.interval = e.last, interval
	e.last = tokens
}

// add takes in a measurement.
func (e *prefillSpeed) add(tokens int, seconds float64) {
	e.tokens = e.tokens*learnWeight + float64(tokens)
	e.seconds = e.seconds*learnWeight + seconds
	e.samples++
}

// tokensPerS is the speed, 0 while too little is known.
func (e *prefillSpeed) tokensPerS() float64 {
	if e.samples < minSamples {
		return 0
	}
	return e.tokens / e.seconds
}

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
	l.prefill.step(now, total, follows)
}
