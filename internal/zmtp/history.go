package zmtp

import (
	"cmp"
	"errors"
	"sync"
)

// HistoryOptions bound a [History].
type HistoryOptions struct {
	// MaxBatches is how many batches are kept. Default 10,000, as engines do.
	MaxBatches int
	// MaxBytes bounds their memory. Default 64 MiB.
	MaxBytes int
}

// EnsureDefaults fills in what is not set.
func (o *HistoryOptions) EnsureDefaults() {
	o.MaxBatches = cmp.Or(o.MaxBatches, 10_000)
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
}

// Validate reports the first option that cannot be used.
func (o *HistoryOptions) Validate() error {
	if o.MaxBatches < 1 || o.MaxBytes < 1 {
		return errors.New("zmtp: history bounds must be positive")
	}
	return nil
}

// History keeps the last batches for replays. Its methods may be called from any goroutine.
type History struct {
	opts HistoryOptions

	mu    sync.Mutex
	ring  []batch // batch seq is at seq modulo its length
	first uint64  // oldest one kept
	next  uint64
	bytes int
}

type batch struct{ topic, payload []byte }

// NewHistory makes a history whose first batch will have the number 0.
func NewHistory(o HistoryOptions) (*History, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &History{opts: o, ring: make([]batch, o.MaxBatches)}, nil
}

// Append keeps a batch, whose bytes must not change from now on, and returns its number.
func (h *History) Append(topic, payload []byte) uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq := h.next
	h.next++
	for h.first < seq && (seq-h.first >= uint64(len(h.ring)) || h.bytes+len(payload) > h.opts.MaxBytes) {
		slot := &h.ring[h.first%uint64(len(h.ring))]
		h.bytes -= len(slot.payload)
		*slot = batch{}
		h.first++
	}
	h.ring[seq%uint64(len(h.ring))] = batch{topic: topic, payload: payload}
	h.bytes += len(payload)
	return seq
}

// Next is the number that the next batch will have.
func (h *History) Next() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next
}

// from returns the oldest batch kept whose number is at least seq.
func (h *History) from(seq uint64) (found uint64, b batch, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	seq = max(seq, h.first)
	if seq >= h.next {
		return 0, batch{}, false
	}
	return seq, h.ring[seq%uint64(len(h.ring))], true
}
