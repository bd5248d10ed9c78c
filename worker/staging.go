package worker

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a transparent huge page: buffers of 4 KiB pages cost 18 to
// 42% of read bandwidth (docs/benchmarks.md).
const hugePage = 2 << 20

// staging is a fixed set of equal page-aligned buffers between store and engine memory.
// It is safe for concurrent use.
type staging struct {
	mem  []byte
	free chan []byte
}

var errNoStaging = errors.New("no staging slot is free")

// newStaging makes slots of slotBytes, a multiple of the page size, that take about
// budgetBytes together, but at least minSlots.
func newStaging(slotBytes int, budgetBytes int64, minSlots int) (*staging, error) {
	n := max(int(budgetBytes/int64(slotBytes)), minSlots)
	size := (n*slotBytes + hugePage - 1) / hugePage * hugePage
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of staging memory: %w", size, err)
	}
	// Best effort: without huge pages the copies are right, only slower.
	_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	s := &staging{mem: mem, free: make(chan []byte, n)}
	for i := range n {
		s.free <- mem[i*slotBytes : (i+1)*slotBytes : (i+1)*slotBytes]
	}
	return s, nil
}

// take waits for a slot.
func (s *staging) take(ctx context.Context) ([]byte, error) {
	select {
	case b := <-s.free:
		return b, nil
	default:
	}
	select {
	case b := <-s.free:
		return b, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", errNoStaging, ctx.Err())
	}
}

// tryTake returns a slot or nil.
func (s *staging) tryTake() []byte {
	select {
	case b := <-s.free:
		return b
	default:
		return nil
	}
}

// put gives a slot back.
func (s *staging) put(b []byte) { s.free <- b[:cap(b)] }

// release gives the memory back to the system. Every slot must have been put.
func (s *staging) release() error {
	if len(s.free) != cap(s.free) {
		panic("worker: staging released while slots are out")
	}
	mem := s.mem
	s.mem = nil
	return unix.Munmap(mem)
}
