package upload

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// memory gives objects their buffers. They lie outside Go's heap, whose collector would let it grow
// to twice their size, and are aligned to pages, as direct I/O wants it.
type memory struct {
	bufferBytes int // of most
	mapped      atomic.Int64

	mu     sync.Mutex
	free   []*buffer // of bufferBytes
	closed bool      // buffers are unmapped as they are released
}

// buffer is the memory of an object. It is free when the last user has released it: the object itself,
// and reads that were given up before the device had answered.
type buffer struct {
	bytes []byte
	users atomic.Int32
	of    *memory
}

// get returns a buffer of at least n bytes with one user.
func (m *memory) get(n int) (*buffer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n = max(n, m.bufferBytes)
	var b *buffer
	if last := len(m.free) - 1; n == m.bufferBytes && last >= 0 {
		b = m.free[last]
		m.free = m.free[:last]
	} else {
		bytes, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes for an upload: %w", n, err)
		}
		m.mapped.Add(int64(n))
		b = &buffer{bytes: bytes, of: m}
	}
	b.users.Store(1)
	return b, nil
}

// release ends one use.
func (b *buffer) release() {
	if b.users.Add(-1) > 0 {
		return
	}
	m := b.of
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(b.bytes) == m.bufferBytes && !m.closed {
		m.free = append(m.free, b)
		return
	}
	m.unmap(b)
}

// close unmaps what is free, and the rest as it is released.
func (m *memory) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.trim()
}

// trim unmaps what is free.
func (m *memory) trim() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.free {
		m.unmap(b)
	}
	m.free = nil
}

func (m *memory) unmap(b *buffer) {
	m.mapped.Add(-int64(len(b.bytes)))
	if err := unix.Munmap(b.bytes); err != nil {
		panic(fmt.Sprintf("unmap the memory of an upload: %v", err)) // it was not mapped: a bug
	}
}
