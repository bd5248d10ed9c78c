package store

import (
	"context"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
)

// Reader reads records.
type Reader interface {
	// Read reads and verifies records, in the order given where it asks a device for them. It
	// returns when all are done. done is called exactly once for each op, as soon as it is
	// finished, from a goroutine of the tier or from Read itself; calls for different ops may
	// overlap. done must not block for long.
	//
	// op.Err is nil only if header and payload were verified. Otherwise it matches [ErrGone],
	// [ErrCorrupt], [ErrIO], [ErrTimeout] (ctx ended, or the tier's own time for one record
	// passed), [ErrInvalid] or [ErrClosed]. A buffer may still belong to the kernel after
	// [ErrTimeout]: see [ReadOp.Settled].
	Read(ctx context.Context, ops []*ReadOp, done func(*ReadOp))
}

// Writer writes records.
type Writer interface {
	// Write hands records to the tier and returns at once. It accepts a leading part of ops and
	// returns its length; err says why it stopped there: [ErrBusy] if a budget is used up,
	// [ErrTooLarge], [ErrInvalid], [ErrIO], [ErrClosed], or nil if all were accepted. Ops that
	// were not accepted remain the caller's and are not reported.
	//
	// done is called exactly once for each accepted op, from a goroutine of the tier, when the
	// record can be found, or with op.Err set. It must not block. A record that is there already
	// costs no I/O and succeeds; concurrent writes of one record write once.
	Write(ops []*WriteOp, done func(*WriteOp)) (accepted int, err error)
}

// ReadOp is one record to read. The fields up to OnSettled are the caller's and must not change
// between the call of [Reader] and done, or the end of [ReadOp.Settled].
type ReadOp struct {
	// Record says what the record must be. The tier sets its Parent if AnyParent is set.
	Record
	// Payload receives the bytes. Its length is the payload's size, its address is a multiple of
	// [BufferAlign] and its capacity at least [PayloadBufferSize] of it.
	Payload []byte
	// Ahead says that no load has asked for the record yet.
	Ahead bool
	// Owner is whatever the caller wants to find again when the op is done. A pointer is best:
	// it does not allocate.
	Owner any
	// OnSettled, if not nil, is called once from a goroutine of the tier, or from Read itself, when
	// the buffer of an op that was reported while [ReadOp.Settled] was false is free again, and
	// done has returned. It must not block.
	OnSettled func(*ReadOp)

	// Err is the result, set before done is called: nil only if header and payload were verified.
	Err error
	// Scope, set where Err is nil, is what [WriteOp] kept with the record.
	Scope connector.ScopeDigest
	// From, set where Err is nil, is the name of the tier that delivered the record.
	From string
	// Promote, set by a chain of tiers, says that a slower tier than the first delivered the record: the
	// first is to be offered it.
	Promote bool

	unsettled atomic.Bool
}

// Settled reports whether the kernel and the tier are finished with the op's buffer. It is true
// when done is called, except for an op that was given up at its deadline before the device had
// answered (Err is [ErrTimeout]): such a buffer must not be used, freed or unmapped, nor the op
// used again, until OnSettled is called or Settled returns true.
func (op *ReadOp) Settled() bool { return !op.unsettled.Load() }

// SetSettled is for tiers: false before an op is reported whose buffer is still being written
// to, true when it is free again.
func (op *ReadOp) SetSettled(settled bool) { op.unsettled.Store(!settled) }

// WriteOp is one record to write. The op and its buffer belong to the tier from the call of
// [Writer] until done. Others may read the payload meanwhile: the tier does not change it.
type WriteOp struct {
	// Record goes into the record's header.
	Record
	// Scope is kept with the record so that a tenant's records can be listed and cleared.
	Scope connector.ScopeDigest
	// Payload holds the bytes; same rules as for [ReadOp]. The tier sets the bytes between the
	// length and the padded length to zero.
	Payload []byte
	// Owner is whatever the caller wants to find again when the op is done.
	Owner any

	// Err is the result, set before done is called: nil if the record can be found.
	Err error
}
