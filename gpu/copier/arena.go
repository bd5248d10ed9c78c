package copier

import (
	"cmp"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu/libcuda"
)

// chunkBytes is how much of the arena is registered with the driver in one call: some milliseconds of work, during
// which copies from other chunks go on. No copy crosses two registrations, so runs are cut at chunks. The driver
// refuses registrations of 512 GiB (vllm#51081); these are far from it.
const chunkBytes = 256 << 20

// arena is the host tier's memory.
type arena struct {
	mem []byte
	// pinned chunks, from the beginning on. Copies of others work, more slowly.
	pinned atomic.Int64
}

// openArena maps the arena, and closes the file.
func openArena(f *os.File, sizeBytes int64) (*arena, error) {
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && (sizeBytes <= 0 || info.Size() < sizeBytes) {
		err = fmt.Errorf("it has %d bytes, not %d", info.Size(), sizeBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the arena of %d bytes: %w", sizeBytes, err)
	}
	return &arena{mem: mem}, nil
}

// pin registers chunk after chunk, and tells how far it has come. It stops at the first that is refused: the limit on
// locked memory, or no memory.
func (a *arena) pin(c *libcuda.Context, tell func(bytes int64, refused int32)) {
	for at := int64(0); at < int64(len(a.mem)); at += chunkBytes {
		end := min(at+chunkBytes, int64(len(a.mem)))
		if err := c.HostRegister(a.mem[at:end]); err != nil {
			tell(at, int32(cmp.Or(libcuda.CodeOf(err), libcuda.UnknownError)))
			return
		}
		a.pinned.Store(end)
		tell(end, 0)
	}
}

// addr is the host address of an offset.
func (a *arena) addr(offset uint64) libcuda.DevicePtr {
	return libcuda.Addr(a.mem) + libcuda.DevicePtr(offset)
}

// isPinned reports whether all bytes up to end are registered.
func (a *arena) isPinned(end uint64) bool { return end <= uint64(a.pinned.Load()) }
