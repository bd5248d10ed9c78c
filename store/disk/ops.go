package disk

import (
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// NamespaceID is the number that one store gave to a namespace. It stays the same as
// long as the store's index lives and means nothing to another store.
type NamespaceID uint32

// LeaseID names a lease that [Store.Lookup] gave. Zero is no lease.
type LeaseID uint64

// RecordID is what a record is found by.
type RecordID struct {
	Namespace NamespaceID
	Shard     connector.Shard
	Key       connector.Key
}

// Limits of a payload in bytes.
const (
	MinPayloadBytes = 1
	MaxPayloadBytes = 64 << 20
)

// BufferAlign is what the address and the capacity of a payload buffer must be a
// multiple of, in bytes.
const BufferAlign = fsio.Align

// PayloadBufferSize returns the capacity, a multiple of [BufferAlign], that the buffer of
// a payload of payloadBytes must have. The bytes between the payload and that capacity
// belong to the store during an operation and are undefined after it.
func PayloadBufferSize(payloadBytes int) int { return fsio.AlignUp(payloadBytes) }

// ReadOp is one record to read. The fields up to OnSettled are the caller's and must not
// change between the call of [Store.Read] and done, or the end of [ReadOp.Settled].
type ReadOp struct {
	// ID, Parent and Proof are what the record must be.
	ID     RecordID
	Parent connector.Key
	Proof  connector.Proof
	// Payload receives the bytes. Its length is the payload's size, its address is a
	// multiple of [BufferAlign] and its capacity at least [PayloadBufferSize] of it.
	Payload []byte
	// OnSettled, if not nil, is called once from a goroutine of the store when the buffer
	// of an op that was reported while [ReadOp.Settled] was false is free again. It must
	// not block.
	OnSettled func(*ReadOp)
	// Err is the result, set before done is called: nil only if header and payload were
	// verified.
	Err error

	rd readState
}

// Settled reports whether the kernel and the store are finished with the op's buffer. It
// is true when done is called, except for an op that was given up at its deadline while
// the disk had not answered (Err is [ErrTimeout]): such a buffer must not be used, freed
// or unmapped, nor the op used again, until OnSettled is called or Settled returns true.
func (op *ReadOp) Settled() bool { return !op.rd.unsettled.Load() }

// readState is the store's part of a ReadOp. All but unsettled is guarded by the mutex of
// reads while the op is queued or issued, and owned by one goroutine otherwise.
type readState struct {
	batch       *readBatch
	found       foundRecord
	header      *headerBuffer
	phase       readPhase
	asked       int // bytes of the padded payload asked of the disk
	outstanding int // requests in the kernel
	issuedAt    time.Time
	ioErr       error
	// probe reads whatever the record is of.
	probe bool
	// unsettled is set while an abandoned op has requests in the kernel.
	unsettled atomic.Bool
}

// WriteOp is one record to write. The op and its buffer belong to the store from the
// call of [Store.Write] until done.
type WriteOp struct {
	// ID, Parent and Proof go into the record's header.
	ID     RecordID
	Parent connector.Key
	Proof  connector.Proof
	// Scope is kept with the record so that a tenant's records can be listed and cleared.
	Scope connector.ScopeDigest
	// Payload holds the bytes; same rules as for [ReadOp]. The store sets the bytes
	// between the length and the padded length to zero.
	Payload []byte
	// Err is the result, set before done is called: nil if the record is in the index.
	Err error

	wr writeState
}

// writeState is the store's part of a WriteOp.
type writeState struct {
	done      func(*WriteOp)
	budget    int64      // bytes taken from the write budget
	followers []*WriteOp // other ops of the same record, finished with this one
	children  []*WriteOp // written, waiting for this one to be committed before them
	// committing is set when the op's turn to be committed has come.
	committing bool
	ref        uint32 // slot, as a reference of the index
	depth      uint16 // blocks before it in its chain
	seq        uint64
	// oldRef and oldSeq name the record that this one replaces, if oldSeq is not 0.
	oldRef uint32
	oldSeq uint64
}
