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
	// ErrLost means that engine memory vanished under a copy, as when the engine truncates
	// its memory or has died, or that its device failed for good (a sticky CUDA error). The
	// memory is unusable from then on; the process and other ranks' memory are not.
	ErrLost = errors.New("engine memory is gone")
	// ErrBounds means that a piece lies outside its region.
	ErrBounds = errors.New("outside of the registered memory")
)

// Direction of a copy.
type Direction uint8

// Directions of a copy, as the engine sees it.
const (
	// Load copies from host memory into engine memory, Save the other way.
	Load Direction = iota
	Save
)

// Piece is one contiguous copy between engine memory and host memory.
type Piece struct {
	// Region is the index of the descriptor that the memory was opened from.
	Region uint32
	// Offset is where the piece begins in its region, in bytes; its length is that of
	// Host.
	Offset uint64
	Host   []byte
}

// Batch is what one call copies. Pieces must not overlap in engine memory.
type Batch struct {
	Direction Direction
	Pieces    []Piece
	// AfterStep is the engine step whose end on the device the copy has to wait for: a
	// save reads what the step writes, a load writes what an earlier step may still read.
	// 0 means that the caller has made sure. Drivers whose engine computes in order with
	// its calls, as on a CPU, have nothing to wait for.
	AfterStep uint64
}

// Memory is one rank's engine memory that this process has opened. Copies may run
// concurrently; Close may not run beside them.
type Memory interface {
	// RegionBytes is the size of each region.
	RegionBytes() []int64
	// Copy copies a batch and returns once it is complete, in any order of its pieces. It
	// may sort and merge b.Pieces. On an error nothing is known of what was copied. A
	// device driver submits to a stream of the direction and waits for the batch's event;
	// it returns early only where the device can no longer write (ErrLost). ctx bounds the
	// wait for AfterStep.
	Copy(ctx context.Context, b *Batch) error
	// Close gives the memory back.
	Close() error
}

// Shape is how copies are best divided.
type Shape struct {
	// Calls is how many calls of Copy should run side by side for one rank.
	Calls int
	// BatchBytes is how much one call should copy.
	BatchBytes int
}

// Driver opens engine memory. It is safe for concurrent use.
type Driver interface {
	// Shape says how copies are best divided: a processor wants every core busy with what
	// fits its cache, a device few calls with much in each.
	Shape() Shape
	// Open opens a rank's memory behind its descriptors, which may be closed after.
	Open(files []*os.File) (Memory, error)
	// PinHost prepares host memory that copies will use (page-locking it for a device);
	// the returned function undoes it. Copies work without, slower.
	PinHost(mem []byte) (unpin func() error, err error)
}
