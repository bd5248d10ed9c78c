package store

import (
	"errors"
	"fmt"

	"github.com/kvconn/kvconn/connector"
)

// Errors that callers act on. They are matched with [errors.Is]; the errors returned wrap them
// and say what was being done to what.
var (
	// ErrBusy says that a budget is used up, or that no slot can be freed at the moment because
	// readers and leases hold the records. The same call may succeed later; callers drop a save
	// that gets it.
	ErrBusy = errors.New("store: busy")
	// ErrGone says that the tier does not have the record: a miss.
	ErrGone = errors.New("store: record is not in the store")
	// ErrMismatch says that the record found under the key is intact but was made of another
	// prefix: its proof or parent differs from what the caller expects. It wraps [ErrGone], since
	// for the caller it is a miss.
	ErrMismatch = fmt.Errorf("store: record is of another prefix: %w", ErrGone)
	// ErrUnreadable says that the record is intact and cannot be used here: a newer program wrote it in
	// a format that this one does not know, it is sealed with a key that is not in the key file, or it is
	// not sealed where the key file demands that. The record stays until its slot is needed. It wraps
	// [ErrGone].
	ErrUnreadable = fmt.Errorf("store: record cannot be used here: %w", ErrGone)
	// ErrCorrupt says that the stored bytes failed verification. The record has been dropped and
	// counted.
	ErrCorrupt = errors.New("store: record is corrupt")
	// ErrIO says that the operating system failed a read or a write (EIO, ENOSPC). The record of
	// a failed read stays, so that it can be tried again; it is dropped when its second read
	// fails too while others succeed, and replaced if it is saved again.
	ErrIO = errors.New("store: input/output error")
	// ErrTimeout says that an operation did not end by its deadline. After a read the kernel may
	// still own the buffer; see [ReadOp.Settled].
	ErrTimeout = errors.New("store: deadline exceeded")
	// ErrInvalid says that the caller broke the contract: wrong payload size, unaligned buffer,
	// unknown namespace.
	ErrInvalid = errors.New("store: invalid argument")
	// ErrTooLarge says that a payload can never be kept: with what the tier needs for itself it
	// is larger than the cap.
	ErrTooLarge = errors.New("store: record does not fit the cap")
	// ErrClosed says that the tier is closed or closing.
	ErrClosed = errors.New("store: closed")
	// ErrLagged says that events a subscriber has not seen are no longer kept. It must subscribe
	// again and begin with a snapshot.
	ErrLagged = errors.New("store: subscriber fell behind")
	// ErrPayloadSize says that a namespace's shard has payloads of another size: its records do, or
	// a connected engine has registered it. Every [PayloadSizeError] matches it, and it wraps
	// [ErrInvalid].
	ErrPayloadSize = fmt.Errorf("store: payload size differs from that of the shard's records: %w", ErrInvalid)
)

// PayloadSizeError is an [ErrPayloadSize] with both sizes.
type PayloadSizeError struct {
	Namespace connector.NamespaceDigest
	Shard     connector.Shard
	// Bytes is the size that was asked for. Stored is the size of the shard's records, or, if Held
	// is set, that which an engine has registered: see [Namespaces].
	Bytes, Stored int
	Held          bool
}

// Error implements error.
func (e *PayloadSizeError) Error() string {
	if e.Held {
		return fmt.Sprintf("payload of %d bytes: an engine that is connected has registered shard %d in namespace %v with %d bytes: is the same model served with two memory layouts?",
			e.Bytes, e.Shard, e.Namespace, e.Stored)
	}
	return fmt.Sprintf("payload of %d bytes: the records of shard %d in namespace %v have %d bytes: was the same model served with another memory layout?",
		e.Bytes, e.Shard, e.Namespace, e.Stored)
}

// Unwrap returns [ErrPayloadSize].
func (e *PayloadSizeError) Unwrap() error { return ErrPayloadSize }
