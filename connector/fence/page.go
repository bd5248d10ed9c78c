// Package fence is the page of shared memory by which an engine process takes its memory
// back from the daemon without waiting for an answer. The engine's side makes the page
// and passes it along when it registers. The daemon increments the page's count before each
// copy to or from engine memory and decrements it afterwards. Once the engine's side has set
// the fence, no new copy begins; when the count then reads zero, no copy will touch the memory
// again, even if the daemon is suspended and resumes later.
package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Layout of the page: little-endian 64-bit numbers on cache lines of their own. The
// first is not 0 once the engine's side has fenced the page; the second counts the copies
// under way. A third is for engines on devices: the number of the last call that the device has
// come to, which the engine's compute stream writes. See revoked.go for the rest.
const (
	pageBytes     = 4096
	offsetFenced  = 0
	offsetCopies  = 64
	offsetReached = 128
)

// seals that a page must have: the daemon must not fault on memory that shrinks.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// ErrPage marks a descriptor that is no fence page.
var ErrPage = errors.New("descriptor is no fence page")

// Page is one mapping of a fence page. It is safe for concurrent use, except for Close.
type Page struct {
	mem            []byte
	fenced, copies *atomic.Int64
	reached        *atomic.Uint64
	revoked        revocations
}

// New makes a page and returns the descriptor to pass to the daemon, which the caller
// closes.
func New() (*Page, *os.File, error) {
	fd, err := unix.MemfdCreate("kvconn-fence", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("make a fence page: %w", err)
	}
	f := os.NewFile(uintptr(fd), "kvconn-fence")
	if err = f.Truncate(pageBytes); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	}
	var p *Page
	if err == nil {
		p, err = Open(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("make a fence page: %w", err)
	}
	return p, f, nil
}

// Open maps a page that another process made. The descriptor may be
// closed after. Errors that wrap [ErrPage] mean that it is something else.
func Open(f *os.File) (*Page, error) {
	got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return nil, fmt.Errorf("%w: it is not sealed against a change of size", ErrPage)
	}
	if info, err := f.Stat(); err != nil || info.Size() != pageBytes {
		return nil, fmt.Errorf("%w: want %d bytes", ErrPage, pageBytes)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map fence page: %w", err)
	}
	return &Page{
		mem:     mem,
		fenced:  (*atomic.Int64)(unsafe.Pointer(&mem[offsetFenced])),
		copies:  (*atomic.Int64)(unsafe.Pointer(&mem[offsetCopies])),
		reached: (*atomic.Uint64)(unsafe.Pointer(&mem[offsetReached])),
		revoked: revocationsIn(mem),
	}, nil
}

// Fence makes sure that no copy begins any more. It cannot be undone.
func (p *Page) Fence() { p.fenced.Store(1) }

// Fenced reports whether the page was fenced.
func (p *Page) Fenced() bool { return p.fenced.Load() != 0 }

// Idle reports that no copy is under way. After Fence it stays true.
func (p *Page) Idle() bool { return p.copies.Load() == 0 }

// Begin counts a copy in. It returns false, and counts nothing, where the page is fenced.
func (p *Page) Begin() bool {
	p.copies.Add(1)
	// The order matters: either this load sees the fence, or the side that fences sees the count.
	if p.Fenced() {
		p.copies.Add(-1)
		return false
	}
	return true
}

// End counts a copy out.
func (p *Page) End() { p.copies.Add(-1) }

// Reached is the number of the last call that the engine's device has come to: everything that was queued there before
// the call has been executed.
func (p *Page) Reached() uint64 { return p.reached.Load() }

// Reach sets it, for engines that do so without a device's stream.
func (p *Page) Reach(call uint64) { p.reached.Store(call) }

// Await waits for copies into engine memory, whose channels are closed at their ends, unless ctx
// ends first.
func Await(ctx context.Context, copies ...<-chan struct{}) error {
	for _, ended := range copies {
		select {
		case <-ended:
		case <-ctx.Done():
			return fmt.Errorf("a copy into engine memory is under way: %w", ctx.Err())
		}
	}
	return nil
}

// Close unmaps the page.
func (p *Page) Close() error {
	mem := p.mem
	p.mem = nil
	if mem == nil {
		return nil
	}
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("unmap fence page: %w", err)
	}
	return nil
}
