package load

import (
	"errors"
	"time"

	"github.com/kvconn/kvconn/connector"
)

// Errors of [Tracker.Add].
var (
	// ErrUnknownRank means that the rank was never set or has been removed.
	ErrUnknownRank = errors.New("load: unknown rank")
	// ErrDuplicate means that a request of this id is in flight.
	ErrDuplicate = errors.New("load: request is in flight already")
	// ErrFull means that as many requests or ranks are tracked as the options allow.
	ErrFull = errors.New("load: too many")
	// ErrInvalid means token counts or a number of blocks out of range.
	ErrInvalid = errors.New("load: invalid request")
)

// Request is a request that was placed on a rank.
type Request struct {
	// ID names the request until it finishes.
	ID uint64
	// Rank is where it was placed.
	Rank int32
	// PromptTokens is the length of its prompt, CachedTokens how many of them the rank need not
	// compute, whatever tier has them; DiskTokens and ObjectTokens are those of CachedTokens that
	// the rank loads from disk and from the object store.
	PromptTokens, CachedTokens, DiskTokens, ObjectTokens int
	// Keys are the block keys of the prompt in order, for shared counting; may be nil or cover only
	// the head of the prompt. They are copied.
	Keys []connector.Key
}

// maxPromptTokens bounds a prompt: more than any engine takes, and sums of them never overflow.
const maxPromptTokens = 1 << 30

func (r *Request) validate(blockSize int) error {
	if r.PromptTokens < 0 || r.PromptTokens > maxPromptTokens || r.CachedTokens < 0 || r.CachedTokens > maxPromptTokens ||
		r.DiskTokens < 0 || r.DiskTokens > r.CachedTokens || r.ObjectTokens < 0 || r.ObjectTokens > r.CachedTokens ||
		len(r.Keys) > blocksOf(r.PromptTokens, blockSize) {
		return ErrInvalid
	}
	return nil
}

// entry is a request in flight. Entries are recycled.
type entry struct {
	id                   uint64
	rank                 *rankState
	prompt, uncached     int64
	disk, object, output int64
	prefill              bool
	keys                 []connector.Key // counted once per rank
	blocks               int64           // counted for this request alone
	touched              time.Time

	older, newer *entry // all requests, by the last word of them
	ahead, after *entry // those of one rank that wait or are in prefill, in order
}

// release empties e for its next use, keeping the memory of its keys if it has room for no more than limit.
func (e *entry) release(limit int) {
	keys := e.keys[:0]
	if cap(keys) > limit {
		keys = nil
	}
	*e = entry{keys: keys}
}
