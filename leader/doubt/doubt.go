// Package doubt pauses the offers of an engine whose loads fail on other nodes.
package doubt

import (
	"strings"
	"time"
)

// Doubt keeps offers back after loads of ranks on other nodes have failed in a row. A dead daemon there, or a disk that
// hangs, shows in no tier here, and each load that fails costs its request the time until it did. The zero value has no
// doubt. It is not safe for concurrent use.
type Doubt struct {
	failures int
	// step is the newest step at the last failure that counted: loads that were planned by then are the same failure.
	step  uint64
	until time.Time
	// trial is the request that tries again after a pause, "" for none yet.
	trial string
}

// The bounds of a pause.
const (
	// After failures in a row offers pause, for Min at first and twice as long after each further one, up to Max.
	After    = 3
	Min, Max = time.Second, 30 * time.Second
)

// Failed counts a load that was planned in a step.
func (d *Doubt) Failed(planned, step uint64, now time.Time) {
	if d.failures > 0 && planned <= d.step {
		return
	}
	d.failures, d.step, d.trial = d.failures+1, step, ""
	if d.failures >= After {
		d.until = now.Add(min(Max, Min<<min(d.failures-After, 10)))
	}
}

// Denies reports whether a request is to be offered nothing.
func (d *Doubt) Denies(request string, now time.Time) bool {
	return d.failures >= After && request != d.trial && now.Before(d.until)
}

// Offered notes an offer. The first request after a pause tries, and the others are denied until its load ends: each would
// lose as much time if that fails too. That is bounded, since the request may end before it loads.
func (d *Doubt) Offered(request string, now time.Time) {
	if d.failures >= After && request != d.trial {
		d.trial, d.until = strings.Clone(request), now.Add(Max) // the message that it is part of ends
	}
}

// Over notes that a load of a request ended, and says nothing of other nodes: the next one tries.
func (d *Doubt) Over(request []byte) {
	if d.trial != "" && d.trial == string(request) {
		d.trial, d.until = "", time.Time{}
	}
}
