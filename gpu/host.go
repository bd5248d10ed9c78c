package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// HostDriver serves engines whose KV cache is shared memory (a memfd, or a file in
// /dev/shm). The zero value is ready to use.
type HostDriver struct{}

var _ Driver = (*HostDriver)(nil)

// hostMemory are shared mappings.
type hostMemory struct {
	regions [][]byte
	sizes   []int64
	lost    atomic.Bool
	// populating ends soon after stop is called.
	populating sync.WaitGroup
	stop       context.CancelFunc
}

var _ Memory = (*hostMemory)(nil)

// Open maps the whole of each file, readable and writable.
func (*HostDriver) Open(files []*os.File) (Memory, error) {
	ctx, stop := context.WithCancel(context.Background())
	m := &hostMemory{stop: stop}
	for i, f := range files {
		mem, err := mapShared(f)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("region %d: %w", i, err), m.Close())
		}
		m.regions = append(m.regions, mem)
		m.sizes = append(m.sizes, int64(len(mem)))
		m.populate(ctx, f, mem)
	}
	return m, nil
}

// PinHost does nothing: what a processor copies needs no page lock.
func (*HostDriver) PinHost(*os.File, []byte) (func() error, error) {
	return func() error { return nil }, nil
}

func mapShared(f *os.File) ([]byte, error) {
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
	return mem, nil
}

func (m *hostMemory) RegionBytes() []int64 { return m.sizes }

// Close unmaps the regions.
func (m *hostMemory) Close() error {
	m.stop()
	m.populating.Wait()
	regions := m.regions
	m.regions = nil
	var err error
	for _, mem := range regions {
		err = errors.Join(err, unix.Munmap(mem))
	}
	if err != nil {
		return fmt.Errorf("unmap engine memory: %w", err)
	}
	return nil
}

// Shape of host copies: one core reaches about half of the memory's bandwidth, and more
// than maxCopiers find it used up.
const (
	maxCopiers = 4
	batchBytes = 2 << 20
)

// Shape says that the cores share the copies in small parts.
func (*hostMemory) Shape() Shape {
	return Shape{Calls: min(maxCopiers, runtime.GOMAXPROCS(0)), BatchBytes: batchBytes}
}

// Copy copies a batch in the calling goroutine. It never waits.
func (m *hostMemory) Copy(_ context.Context, b *Batch) error {
	if m.lost.Load() {
		return ErrLost
	}
	for i := range b.Pieces {
		if err := b.Pieces[i].Check(m.sizes); err != nil {
			return err
		}
	}
	return m.copy(b.Direction, Merge(b.Pieces))
}

// copy copies pieces that lie inside their regions. The engine may truncate its memory at
// any time; the access then faults, which must cost the rank and not the daemon.
func (m *hostMemory) copy(d Direction, pieces []Piece) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if _, isFault := p.(interface{ Addr() uintptr }); !isFault {
				panic(p)
			}
			m.lost.Store(true)
			err = ErrLost
		}
	}()
	for i := range pieces {
		p := &pieces[i]
		engine := m.regions[p.Region][p.Offset : p.Offset+uint64(len(p.Host))]
		if d == Load {
			copy(engine, p.Host)
		} else {
			copy(p.Host, engine)
		}
	}
	return nil
}
