package inflight

import (
	"errors"

	"github.com/kvconn/kvconn/connector"
)

// Errors of [Tracker.Add].
var (
	// ErrUnknownRank means that the rank was never set or has been removed.
	ErrUnknownRank = errors.New("inflight: unknown rank")
	// ErrDuplicate means that a request of this id is in flight.
	ErrDuplicate = errors.New("inflight: request is in flight already")
	// ErrFull means that as many requests or ranks are tracked as the options allow.
	ErrFull = errors.New("inflight: too many")
	// ErrInvalid means that token counts or the number of keys are out of range.
	ErrInvalid = errors.New("inflight: invalid request")
)

// Request is a request that was placed on a rank.
type Request struct {
	// ID names the request until it finishes.
	ID uint64
	// Rank is where it was placed.
	Rank int32
	// PromptTokens is the length of its prompt. CachedTokens of them need not be computed, whichever
	// tier has them; DiskTokens and ObjectTokens are the part of CachedTokens that the rank loads from
	// disk and from the object store.
	PromptTokens, CachedTokens, DiskTokens, ObjectTokens int
	// Keys are the block keys of the prompt, for shared counting. They may be nil or cover only the head
	// of the prompt. They are copied.
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
