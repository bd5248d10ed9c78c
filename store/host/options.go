package host

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host/memory"
)

// Errors that callers decide on.
var (
	// ErrFull says that the rank's share of the arena, or the arena, is in use.
	ErrFull = errors.New("host tier: no slot is free")
	// ErrTooLarge says that the arena can never have a slot of that size.
	ErrTooLarge = errors.New("host tier: payload is larger than the arena allows")
	// ErrFillFailed says that the caller that was reading the record gave up. The record may be
	// acquired again, and read.
	ErrFillFailed = errors.New("host tier: the record was not filled")
	// ErrClosed says that the account or the arena is closed.
	ErrClosed = errors.New("host tier: closed")
	// ErrBusy says that slots are in use.
	ErrBusy = errors.New("host tier: slots are in use")
)

// Options configure an [Arena].
type Options struct {
	// Bytes is the size of the arena, rounded down to whole units of 2 MiB: all memory that loads,
	// saves and cached records together may take.
	Bytes int64
	// FreeBytes, if not nil, says how much more memory the machine can give. The whole arena is
	// faulted in while it leaves 256 MiB, because the first touch of a page costs a load or
	// save several times the copy. It is called now and then, from one goroutine.
	FreeBytes func() int64
	// PopulateAheadBytes is how much memory is faulted in beyond what is assigned, whatever
	// FreeBytes says. Default 128 MiB; Bytes and more mean the whole arena.
	PopulateAheadBytes int64
	// Logger receives what an operator should know. Default: nothing.
	Logger *slog.Logger

	// unitBytes is the size of a unit, newMemory maps the arena, now is the time: seams for tests.
	unitBytes int
	newMemory func(bytes int64) (*memory.Memory, error)
	now       func() time.Time
}

// unitBytes is a huge page: memory changes from one size of slots to another in units.
const unitBytes = memory.HugePageBytes

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.PopulateAheadBytes = cmp.Or(o.PopulateAheadBytes, 128<<20)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.unitBytes = cmp.Or(o.unitBytes, unitBytes)
	if o.newMemory == nil {
		o.newMemory = memory.New
	}
	if o.now == nil {
		o.now = time.Now
	}
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Bytes < int64(o.unitBytes):
		return fmt.Errorf("host tier options: Bytes %d: at least %d", o.Bytes, o.unitBytes)
	case o.PopulateAheadBytes < 0:
		return fmt.Errorf("host tier options: PopulateAheadBytes %d is negative", o.PopulateAheadBytes)
	case o.unitBytes%store.BufferAlign != 0 || o.unitBytes/store.BufferAlign > slabSlots:
		return fmt.Errorf("host tier options: unit of %d bytes is not aligned, or too large", o.unitBytes)
	case o.Bytes/store.BufferAlign > slabSlots*(maxSlabs/2): // half of the numbers may be of spans that are not there
		return fmt.Errorf("host tier options: Bytes %d: at most %d", o.Bytes, int64(store.BufferAlign)*slabSlots*(maxSlabs/2))
	}
	return nil
}

// AccountOptions are a rank's bounds.
type AccountOptions struct {
	// Namespace is that of all records the rank loads and saves.
	Namespace connector.NamespaceDigest
	// LoadBytes bounds the slots that loads hold, pinned hits included. Default 64 MiB:
	// several times what keeps a disk busy.
	LoadBytes int64
	// SaveBytes bounds the slots that saves hold. Default 256 MiB: the KV of a few thousand tokens
	// can wait for the disk while the engine goes on.
	SaveBytes int64
}

// EnsureDefaults fills in what is not set.
func (o *AccountOptions) EnsureDefaults() {
	o.LoadBytes = cmp.Or(o.LoadBytes, 64<<20)
	o.SaveBytes = cmp.Or(o.SaveBytes, 256<<20)
}

// Validate reports the first option that cannot work.
func (o *AccountOptions) Validate() error {
	if o.LoadBytes < 0 || o.SaveBytes < 0 {
		return errors.New("host tier account: negative budget")
	}
	return nil
}
