package readio

import (
	"math"
	"time"

	"github.com/kvconn/kvconn/store"
)

const (
	// speedTimeConstant is the busy time after which a measurement has lost 63% of its
	// weight: long enough to average over hundreds of requests to a fast disk, short
	// enough to follow one that turns slow within a few.
	speedTimeConstant = 250 * time.Millisecond
	// latencyWeight is the weight of the newest record in the latency.
	latencyWeight = 1.0 / 8
)

// speed is a ratio of two sums, bytes and busy seconds, that decay with busy time alone.
// It is guarded by the mutex of the reader.
type speed struct {
	bytes, seconds float64
	latency        float64
	mark           time.Time // up to where busy time is counted
}

// seed starts from a rate measured before, which counts like one time constant.
func (e *speed) seed(bytesPerS float64) {
	e.seconds = speedTimeConstant.Seconds()
	e.bytes = bytesPerS * e.seconds
}

// begin starts a busy time.
func (e *speed) begin(now time.Time) { e.mark = now }

// delivered counts a request's bytes and the busy time since the one before.
func (e *speed) delivered(now time.Time, bytes int64) {
	e.bytes, e.seconds = e.at(now)
	e.bytes += float64(bytes)
	e.mark = now
}

// at returns the sums with the busy time up to now.
func (e *speed) at(now time.Time) (bytes, seconds float64) {
	dt := max(0, now.Sub(e.mark).Seconds())
	decay := math.Exp(-dt / speedTimeConstant.Seconds())
	return e.bytes * decay, e.seconds*decay + dt
}

func (e *speed) record(took time.Duration) {
	if e.latency == 0 {
		e.latency = took.Seconds()
		return
	}
	e.latency += latencyWeight * (took.Seconds() - e.latency)
}

// Seed starts the speed from a rate measured before.
func (r *Reader) Seed(bytesPerS float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.speed.seed(bytesPerS)
}

// Speed returns how fast reads are at the moment. It sinks while a disk owes an answer.
func (r *Reader) Speed() store.Speed {
	now := r.o.Clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes, seconds := r.speed.bytes, r.speed.seconds
	if r.inFlight > 0 {
		bytes, seconds = r.speed.at(now)
	}
	v := store.Speed{QueuedBytes: r.backlog, AheadBytes: r.ahead, LatencyS: r.speed.latency}
	if seconds > 0 {
		v.BytesPerS = bytes / seconds
	}
	return v
}
