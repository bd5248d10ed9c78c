package disk

import (
	"errors"
	"fmt"
)

// Errors that callers act on. They are matched with [errors.Is]; the errors returned
// wrap them and say what was being done to what.
var (
	// ErrBusy says that a budget is used up or that no slot can be freed at the moment
	// because readers and leases hold the records. The same call may succeed later; a
	// save that gets it is meant to be dropped.
	ErrBusy = errors.New("store: busy")
	// ErrGone says that the record is not there: a miss.
	ErrGone = errors.New("store: record is not in the store")
	// ErrMismatch says that the record found under the key is intact but was made of
	// another prefix: its proof or parent differs from what the caller expects. It wraps
	// [ErrGone], since for the caller it is a miss.
	ErrMismatch = fmt.Errorf("store: record is of another prefix: %w", ErrGone)
	// ErrUnreadable says that a newer program wrote the record in a way that this one does
	// not know. It stays where it is until its slot is needed. It wraps [ErrGone].
	ErrUnreadable = fmt.Errorf("store: record needs a newer program: %w", ErrGone)
	// ErrCorrupt says that the bytes on disk failed verification. The record has been
	// dropped and counted.
	ErrCorrupt = errors.New("store: record is corrupt")
	// ErrIO says that the operating system failed a read or a write (EIO, ENOSPC). The
	// record of a failed read stays, so that it can be tried again; it is dropped when its
	// second read fails too while others succeed, and replaced if it is saved again.
	ErrIO = errors.New("store: input/output error")
	// ErrTimeout says that an operation did not end by its deadline. After a read it may
	// be that the kernel still owns the buffer; see [ReadOp.Settled].
	ErrTimeout = errors.New("store: deadline exceeded")
	// ErrInvalid says that the caller broke the contract: wrong payload size, unaligned
	// buffer, unknown namespace.
	ErrInvalid = errors.New("store: invalid argument")
	// ErrTooLarge says that a payload can never be kept: with what the store needs for
	// itself it is larger than the cap.
	ErrTooLarge = errors.New("store: record does not fit the cap")
	// ErrClosed says that the store is closed or closing.
	ErrClosed = errors.New("store: closed")
	// ErrInUse says that another process has the directory open.
	ErrInUse = errors.New("store: directory is in use by another process")
	// ErrSegmentsMissing says that the store held records and none of its segment files is
	// there: most likely their file system is not mounted. See [Options].ForgetSegments.
	ErrSegmentsMissing = errors.New("store: segment files are missing")
	// ErrNewerFormat says that a newer version of the program made the directory.
	ErrNewerFormat = errors.New("store: directory has a newer format")
)
