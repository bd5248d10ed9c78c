package disk

import (
	"math"
	"time"
)

// ReadSpeed is how fast the disk delivers what loads ask of it.
type ReadSpeed struct {
	// BytesPerS are bytes delivered a second while at least one request was in flight; 0
	// means not measured yet. Idle time counts nothing, so a disk that is asked for little
	// at a time may do better when it is asked for more.
	BytesPerS float64 `json:"bytes_per_s"`
	// QueuedBytes were asked for and are not delivered: what a new read waits behind.
	QueuedBytes int64 `json:"queued_bytes" metric:"read_queued_bytes" help:"Bytes asked of the disk and not delivered."`
	// LatencyS is the time in seconds from a record's first request to its last byte.
	LatencyS float64 `json:"latency_s" metric:"read_latency_seconds" help:"Time from a record's first request to its last byte, of late."`
}

const (
	// speedTimeConstant is the busy time after which a measurement has lost 63% of its
	// weight: long enough to average over hundreds of requests to a fast disk, short
	// enough to follow one that turns slow within a few.
	speedTimeConstant = 250 * time.Millisecond
	// latencyWeight is the weight of the newest record in the latency.
	latencyWeight = 1.0 / 8
)

// speed is a ratio of two sums, bytes and busy seconds, that decay with busy time alone.
// It is guarded by the mutex of reads.
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

// ReadSpeed returns how fast reads are at the moment. It starts from the calibration if
// there is one, and sinks while a disk owes an answer.
func (s *Store) ReadSpeed() ReadSpeed {
	now := s.opts.clock()
	r := &s.reads
	r.mu.Lock()
	defer r.mu.Unlock()
	bytes, seconds := r.speed.bytes, r.speed.seconds
	if r.inFlight > 0 {
		bytes, seconds = r.speed.at(now)
	}
	v := ReadSpeed{QueuedBytes: r.backlog, LatencyS: r.speed.latency}
	if seconds > 0 {
		v.BytesPerS = bytes / seconds
	}
	return v
}
