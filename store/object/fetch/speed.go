package fetch

import (
	"math"
	"slices"
	"time"

	"github.com/kvconn/kvconn/store"
)

const (
	// speedTimeConstant is the busy time after which a measurement has lost 63% of its weight: a few loads.
	speedTimeConstant = time.Second
	// latencyWeight is the weight of the newest record in the latency.
	latencyWeight = 1.0 / 8
	// What is taken for true before anything was measured: a bucket in the same region on a common machine.
	firstBytesPerS = 50e6
	firstLatencyS  = 0.15
)

// speed is a ratio of two sums, bytes and busy seconds, that decay with busy time alone. Busy is when ranges
// are asked for; but what the first of them takes until its answer begins is latency, unless it is late. It is
// guarded by the mutex of the fetcher.
type speed struct {
	bytes, seconds float64
	latency        float64
	measured       bool      // latency is no guess
	ranges         int       // asked for
	flowing        bool      // an answer has begun, or is late
	mark           time.Time // up to where busy time is counted
}

// seed starts from a guess, which counts for little beside a probe of 8 MiB.
func (e *speed) seed() {
	const weight = 0.05
	e.bytes, e.seconds = firstBytesPerS*weight, weight
	e.latency = firstLatencyS
}

// begin says that one more range is asked for.
func (e *speed) begin() { e.ranges++ }

// flows says that the answer to one begins, or is late.
func (e *speed) flows(now time.Time) {
	if !e.flowing {
		e.flowing, e.mark = true, now
	}
}

// end ends what begin began.
func (e *speed) end(now time.Time) {
	e.delivered(now, 0)
	if e.ranges--; e.ranges == 0 {
		e.flowing = false
	}
}

// delivered counts bytes, and the busy time since the last call.
func (e *speed) delivered(now time.Time, bytes int) {
	e.bytes, e.seconds = e.at(now)
	e.bytes += float64(bytes)
	e.mark = now
}

// at returns the sums with the busy time up to now.
func (e *speed) at(now time.Time) (bytes, seconds float64) {
	if !e.flowing {
		return e.bytes, e.seconds
	}
	tau := speedTimeConstant.Seconds()
	decay := math.Exp(-max(0, now.Sub(e.mark).Seconds()) / tau)
	return e.bytes * decay, e.seconds*decay + tau*(1-decay) // those since the mark decay too: there may be many
}

// first notes how long the first record of a range took.
func (e *speed) first(took time.Duration) {
	if !e.measured {
		e.measured, e.latency = true, took.Seconds()
		return
	}
	e.latency += latencyWeight * (took.Seconds() - e.latency)
}

// now is the speed without what is queued.
func (e *speed) now(now time.Time) store.Speed {
	bytes, seconds := e.at(now)
	return store.Speed{BytesPerS: bytes / seconds, LatencyS: e.latency}
}

const (
	// hedgeShare is one in how many GETs may be repeated because it is late, hedgeCredit how many may be at
	// one time that others have left over.
	hedgeShare  = 20
	hedgeCredit = 4
	// headSamples are kept, and headFresh come before the quantile is computed again.
	headSamples = 128
	headFresh   = 16
)

// heads is how long the heads of answers took of late. It is guarded by the mutex of the fetcher.
type heads struct {
	took   [headSamples]time.Duration
	n      int // since the start
	p95    time.Duration
	credit int // in parts of a hedge: hedgeShare are one
}

// asked counts a GET that is not a hedge.
func (h *heads) asked() { h.credit = min(h.credit+1, hedgeCredit*hedgeShare) }

// hedge reports whether a GET may be repeated.
func (h *heads) hedge() bool {
	if h.credit < hedgeShare {
		return false
	}
	h.credit -= hedgeShare
	return true
}

// came notes how long a head took.
func (h *heads) came(took time.Duration) {
	h.took[h.n%headSamples] = took
	h.n++
	if h.n%headFresh == 0 {
		sorted := h.took
		k := min(h.n, headSamples)
		slices.Sort(sorted[:k])
		h.p95 = sorted[k*95/100]
	}
}

// late is when a head is late.
func (h *heads) late(least time.Duration) time.Duration { return max(least, 2*h.p95) }
