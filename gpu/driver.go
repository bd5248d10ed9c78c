// Package gpu is engine memory and the copies in and out of it. It knows nothing of
// blocks or disks. The host driver serves engines that keep their KV cache in shared
// memory.
package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"
)

// Errors of a driver that callers decide on.
var (
	// ErrNotShared means that a descriptor cannot be mapped as shared memory.
	ErrNotShared = errors.New("descriptor is no shared memory")
	// ErrLost means that engine memory vanished under a copy, as when the engine truncates
	// its memory or has died, or that its device failed for good (a sticky CUDA error). The
	// memory is unusable from then on; the process and other ranks' memory are not.
	ErrLost = errors.New("engine memory is gone")
	// ErrAgain means that the engine's memory can be registered again. With ErrLost it says that the memory itself is not
	// gone; from Open, that the device may serve again soon.
	ErrAgain = errors.New("the memory can be registered again")
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

// String is load or save.
func (d Direction) String() string {
	if d == Save {
		return "save"
	}
	return "load"
}

// Piece is one contiguous copy between engine memory and host memory.
type Piece struct {
	// Region is the index of the descriptor that the memory was opened from.
	Region uint32
	// Offset is where the piece begins in its region, in bytes; its length is that of
	// Host.
	Offset uint64
	Host   []byte
}

// Check returns an error that wraps ErrBounds unless the piece lies in a region of these sizes.
func (p *Piece) Check(regionBytes []int64) error {
	if int(p.Region) >= len(regionBytes) {
		return fmt.Errorf("%w: region %d of %d", ErrBounds, p.Region, len(regionBytes))
	}
	size := uint64(regionBytes[p.Region])
	if p.Offset > size || uint64(len(p.Host)) > size-p.Offset {
		return fmt.Errorf("%w: %d bytes at %d of %d", ErrBounds, len(p.Host), p.Offset, size)
	}
	return nil
}

// Batch is what one call copies. Pieces must not overlap in engine memory.
type Batch struct {
	Direction Direction
	Pieces    []Piece
	// AfterCall is the number of the engine's call that the copy is part of: 1 is the first
	// call that moves blocks since Open. A save reads what the step before the call writes,
	// and a load overwrites what that step may still read. So a device driver starts the copy
	// only once the device has executed everything that the engine had queued before the
	// call. 0 means no wait. Drivers for CPUs, whose calls are synchronous with the computing,
	// ignore it.
	AfterCall uint64
	// Reached is the last call that the device has come to. The engine's stream writes its number,
	// in order, to host memory that it shares with the daemon. It is nil if AfterCall is 0.
	Reached func() uint64
}

// Memory is one rank's engine memory that this process has opened. Copies may run
// concurrently; Close may not run beside them.
type Memory interface {
	// Shape says how copies are best divided: a processor wants every core busy with what
	// fits its cache, a device few calls with much in each. It is constant.
	Shape() Shape
	// RegionBytes is the size of each region.
	RegionBytes() []int64
	// Copy copies a batch and returns once it is complete, in any order of its pieces. It
	// may sort and merge b.Pieces. After an error, any part may have been copied. A
	// device driver submits to a stream of the direction and waits for the batch's event;
	// it returns early only if the device can no longer write (ErrLost). ctx bounds the
	// wait for AfterCall.
	Copy(ctx context.Context, b *Batch) error
	// Close releases the memory.
	Close() error
}

// Awaiter is memory whose device may take long to come to a call: whoever counts copies need not count the wait.
type Awaiter interface {
	// Await waits until the device has come to the batch's call, unless ctx ends first. A Copy after it does not
	// wait. It does not look at b.Pieces.
	Await(ctx context.Context, b *Batch) error
}

// Shape is how copies are best divided.
type Shape struct {
	// Calls is how many calls of Copy should run side by side for one rank.
	Calls int
	// BatchBytes is how much one call should copy.
	BatchBytes int
	// Later says that the engine computes after its calls have returned, as on a device: a copy waits for
	// [Batch.AfterCall].
	Later bool
}

// Driver opens engine memory. It is safe for concurrent use.
type Driver interface {
	// Open opens a rank's memory; region i is that of files[i], which the caller may close
	// afterwards. The meaning of a descriptor is private to the driver and the engine's
	// plugin: [HostDriver] expects shared memory, and a driver of devices descriptions
	// of the device's memory (package region), with a socket for what they name.
	Open(files []*os.File) (Memory, error)
	// PinHost prepares host memory that copies will use (page-locking it for a device); the
	// returned function undoes it. It is called once, before any copy, with all host memory
	// that copies use, which is that of a file. Without it copies work, but slower, or not at all.
	PinHost(file *os.File, mem []byte) (unpin func() error, err error)
}

// Merge sorts pieces by region and offset and joins those that are neighbours in both
// memories, in place. Drivers call it before they copy: neither a memcpy nor a device's
// copy engine joins neighbours by itself (16 runs of 8 KiB joined took a device from 15 to
// 54 GB/s, vllm#48434).
func Merge(pieces []Piece) []Piece {
	if len(pieces) < 2 {
		return pieces
	}
	if !slices.IsSortedFunc(pieces, comparePieces) {
		slices.SortFunc(pieces, comparePieces)
	}
	out := pieces[:1]
	for i := 1; i < len(pieces); i++ {
		last, p := &out[len(out)-1], &pieces[i]
		if joins(last, p) {
			last.Host = last.Host[:len(last.Host)+len(p.Host)]
			continue
		}
		out = append(out, *p)
	}
	return out
}

func comparePieces(a, b Piece) int {
	return cmp.Or(cmp.Compare(a.Region, b.Region), cmp.Compare(a.Offset, b.Offset))
}

// joins reports whether q follows p in both memories. The capacity of p.Host shows that
// both host parts are of one allocation.
func joins(p, q *Piece) bool {
	if p.Region != q.Region || p.Offset+uint64(len(p.Host)) != q.Offset || cap(p.Host) < len(p.Host)+len(q.Host) {
		return false
	}
	end := uintptr(unsafe.Pointer(unsafe.SliceData(p.Host))) + uintptr(len(p.Host))
	return end == uintptr(unsafe.Pointer(unsafe.SliceData(q.Host)))
}
