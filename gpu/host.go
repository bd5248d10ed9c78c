package gpu

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// HostDriver serves engines whose KV cache is shared memory (a memfd, or a file in
// /dev/shm). The zero value is ready to use.
type HostDriver struct{}

var _ Driver = (*HostDriver)(nil)

// hostRegion is a shared mapping.
type hostRegion struct {
	mu  sync.Mutex
	mem []byte
}

var _ Region = (*hostRegion)(nil)

func (r *hostRegion) SizeBytes() int64 { return int64(len(r.mem)) }

func (r *hostRegion) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem = nil
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap engine memory: %w", err)
	}
	return nil
}

// Open maps the whole of f, readable and writable.
func (*HostDriver) Open(f *os.File) (Region, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("size of engine memory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return nil, fmt.Errorf("file system of engine memory: %w", err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		// A copy must never wait for a disk or a network.
		return nil, fmt.Errorf("%w: it is a file on a file system of type %#x", ErrNotShared, fs.Type)
	}
	size := info.Size()
	if !info.Mode().IsRegular() || size <= 0 {
		return nil, fmt.Errorf("%w (mode %s, %d bytes)", ErrNotShared, info.Mode(), size)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: map %d bytes: %w", ErrNotShared, size, err)
	}
	return &hostRegion{mem: mem}, nil
}

// CopyOut copies from engine memory.
func (*HostDriver) CopyOut(_ context.Context, pieces []Piece) error {
	return hostCopy(pieces, func(engine, host []byte) { copy(host, engine) })
}

// CopyIn copies to engine memory.
func (*HostDriver) CopyIn(_ context.Context, pieces []Piece) error {
	return hostCopy(pieces, func(engine, host []byte) { copy(engine, host) })
}

// hostCopy runs move on every piece. The engine may truncate its memory at any time;
// the access then faults, which must cost the copy and not the daemon.
func hostCopy(pieces []Piece, move func(engine, host []byte)) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if _, isFault := p.(interface{ Addr() uintptr }); !isFault {
				panic(p)
			}
			err = ErrFault
		}
	}()
	for i := range pieces {
		p := &pieces[i]
		r, ok := p.Region.(*hostRegion)
		if !ok {
			return fmt.Errorf("%w: region of another driver", ErrBounds)
		}
		size := uint64(len(r.mem))
		if p.Offset > size || uint64(len(p.Host)) > size-p.Offset {
			return fmt.Errorf("%w: %d bytes at %d of %d", ErrBounds, len(p.Host), p.Offset, size)
		}
		move(r.mem[p.Offset:p.Offset+uint64(len(p.Host))], p.Host)
	}
	return nil
}
