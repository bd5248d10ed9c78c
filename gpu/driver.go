// Package gpu is engine memory and the copies in and out of it. It knows nothing of
// blocks or disks. The host driver serves engines that keep their KV cache in shared
// memory.
package gpu

import (
	"context"
	"errors"
	"os"
)

// Errors of a driver that callers decide on.
var (
	// ErrNotShared means that a descriptor cannot be mapped as shared memory.
	ErrNotShared = errors.New("descriptor is no shared memory")
	// ErrFault means that engine memory vanished under a copy, as when the engine
	// truncates its memory or has died. The region is unusable from then on.
	ErrFault = errors.New("engine memory is gone")
	// ErrBounds means that a piece lies outside its region.
	ErrBounds = errors.New("outside of the registered memory")
)

// Region is engine memory that this process has opened.
type Region interface {
	// SizeBytes is the size of the region.
	SizeBytes() int64
	// Close gives the memory back. No copy may be under way.
	Close() error
}

// Piece is one contiguous copy between engine memory and host memory.
type Piece struct {
	Region Region
	// Offset is where the piece begins in its region, in bytes; its length is that of
	// Host.
	Offset uint64
	Host   []byte
}

// Driver opens engine memory and copies. Copies return once they are complete, and may
// run concurrently.
type Driver interface {
	// Open maps the memory behind a descriptor. The descriptor may be closed after.
	Open(f *os.File) (Region, error)
	// CopyOut copies pieces from engine memory to host memory.
	CopyOut(ctx context.Context, pieces []Piece) error
	// CopyIn copies pieces from host memory to engine memory.
	CopyIn(ctx context.Context, pieces []Piece) error
}
