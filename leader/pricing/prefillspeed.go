package pricing

import "time"

// PrefillSpeed measures an engine's prefill speed from the times of its steps. A step counts only
// if the engine was not idle before the next two steps: one of its requests continues in each of
// them. Some clients leave out steps in which a decoding request fills no block (vLLM's): a request
// that has come further since, or several tokens at once, does not count. Because an engine may
// call for step n+1 while step n runs, the step's time is the longer of the two intervals that
// follow it.
type PrefillSpeed struct {
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
	// MinSamples are needed before the speed is used: the first steps of an engine warm up.
	MinSamples = 3
)

// Step takes in a step of that many tokens, 0 if it does not count. follows says that the engine
// was busy since the step before.
func (e *PrefillSpeed) Step(now time.Time, tokens int, follows bool) {
	interval := now.Sub(e.at)
	e.at = now
	if !follows {
		e.last, e.before = tokens, 0
		return
	}
	if took := max(interval, e.interval); e.before > 0 && took > 0 {
		e.Add(e.before, took.Seconds())
	}
	e.before, e.interval = e.last, interval
	e.last = tokens
}

// Add takes in a measurement.
func (e *PrefillSpeed) Add(tokens int, seconds float64) {
	e.tokens = e.tokens*learnWeight + float64(tokens)
	e.seconds = e.seconds*learnWeight + seconds
	e.samples++
}

// TokensPerS is the speed, 0 while too little is known.
func (e *PrefillSpeed) TokensPerS() float64 {
	if e.samples < MinSamples {
		return 0
	}
	return e.tokens / e.seconds
}
