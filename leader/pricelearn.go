package leader

import "time"

// learnt is the engine's prefill speed, as its steps show it. Only a step that the next
// two follow at once says anything: one of its requests goes on in each, so that the
// engine was never idle. Some clients leave out steps in which a decoding request fills no
// block (vLLM's): one that has come further since, or several tokens at once, says nothing.
// The step took the longer of the two intervals behind it, as an engine that overlaps
// steps calls for the next while one still runs: its first interval is next to nothing and
// the second has the time.
type learnt struct {
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
	// learnWeight is what a step's weight is multiplied by with each newer one.
	learnWeight = 0.8
	// minSamples are needed before the speed is used: the first steps of an engine warm up.
	minSamples = 3
)

// step takes in a step of so many tokens, 0 if it does not count. follows says that the
// engine was busy since the step before.
func (e *learnt) step(now time.Time, tokens int, follows bool) {
	interval := now.Sub(e.at)
	e.at = now
	if !follows {
		e.last, e.before = tokens, 0
		return
	}
	if took := max(interval, e.interval); e.before > 0 && took > 0 {
		e.tokens = e.tokens*learnWeight + float64(e.before)
		e.seconds = e.seconds*learnWeight + took.Seconds()
		e.samples++
	}
	e.before, e.interval = e.last, interval
	e.last = tokens
}

// tokensPerS is the speed, 0 while too little is known.
func (e *learnt) tokensPerS() float64 {
	if e.samples < minSamples {
		return 0
	}
	return e.tokens / e.seconds
}
