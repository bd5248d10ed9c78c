// Package memory is the host tier's memory: mapping it, and having the system give it before its use.
package memory

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// HugePageBytes is the size of a huge page, and of what is populated at one time.
const HugePageBytes = 2 << 20

// Memory is a sealed memfd and its mapping, aligned to huge pages.
type Memory struct {
	// File is for engines: it can be mapped read-only alone, and not truncated. Writable is for processes of the daemon
	// itself. They belong to the memory, as Bytes do.
	File, Writable *os.File
	Bytes          []byte
	// reserved is the address range that the mapping lies in.
	reserved      unsafe.Pointer
	reservedBytes uintptr
	// explicit is set if the pages are of the reserved pool (vm.nr_hugepages).
	explicit bool
	// populated bytes, from the beginning on, and those of them in huge pages.
	populated, huge atomic.Int64
}

// Over is memory that is mapped already, at an address from which on it is unmapped.
func Over(file *os.File, bytes []byte, at unsafe.Pointer) *Memory {
	return &Memory{File: file, Bytes: bytes, reserved: at, reservedBytes: uintptr(len(bytes))}
}

// New maps size bytes of shared memory: of the pool of huge pages if it has room.
func New(size int64) (*Memory, error) {
	if size%HugePageBytes == 0 {
		if m, err := mapMemory(size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB); err == nil {
			m.explicit = true
			return m, nil
		}
	}
	m, err := mapMemory(size, 0)
	if err == nil {
		// Advice: it is followed where the kernel's shmem_enabled says so.
		_ = unix.Madvise(m.Bytes, unix.MADV_HUGEPAGE)
	}
	return m, err
}

func mapMemory(size int64, flags int) (_ *Memory, err error) {
	fd, err := unix.MemfdCreate("kvconn-host", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	m := &Memory{Writable: os.NewFile(uintptr(fd), "kvconn-host")}
	defer func() {
		if err != nil {
			_ = m.Close()
		}
	}()
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, fmt.Errorf("size shared memory to %d bytes: %w", size, err)
	}
	if flags&unix.MFD_HUGETLB != 0 {
		err = m.mapAnywhere(fd, size)
	} else {
		err = m.mapAligned(fd, size)
	}
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", size, err)
	}
	// A process that is given File can neither truncate the memory nor write to it. A seal against all new writable
	// mappings would keep the processes out that copy for GPUs, so a descriptor for reading is opened, and the mode
	// keeps other users from opening it again for writing.
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal shared memory: %w", err)
	}
	if err := m.Writable.Chmod(0o400); err != nil {
		return nil, fmt.Errorf("protect shared memory: %w", err)
	}
	if m.File, err = os.Open(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return nil, fmt.Errorf("open shared memory for reading: %w", err)
	}
	return m, nil
}

// mapAnywhere maps a file of huge pages, which the kernel aligns, or refuses.
func (m *Memory) mapAnywhere(fd int, size int64) error {
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.reserved, m.reservedBytes = at, uintptr(size)
	m.Bytes = unsafe.Slice((*byte)(at), size)
	return nil
}

// mapAligned maps a file at an address that may become a huge page.
func (m *Memory) mapAligned(fd int, size int64) error {
	n := uintptr(size) + HugePageBytes
	reserved, err := unix.MmapPtr(-1, 0, nil, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
	}
	at := unsafe.Add(reserved, -uintptr(reserved)&(HugePageBytes-1))
	at, err = unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		// A refused MAP_FIXED may have taken the reservation away, and what lies there now
		// may be another's: the addresses are given up.
		return err
	}
	m.reserved, m.reservedBytes = reserved, n
	m.Bytes = unsafe.Slice((*byte)(at), size)
	return nil
}

// Populated is how many bytes were populated, and how many of all bytes are in huge pages.
func (m *Memory) Populated() (bytes, huge int64) {
	if m.explicit {
		return m.populated.Load(), int64(len(m.Bytes))
	}
	return m.populated.Load(), m.huge.Load()
}

// populate faults a range in, as a huge page if the range is one and the kernel has one free.
// Collapsing needs no setting of the system, but copies: the range first gets a single page for
// that. It reports whether the range became huge. Bytes in use stay as they are.
func (m *Memory) populate(from, to int64) bool {
	b := m.Bytes[from:to]
	if m.explicit {
		return unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil
	}
	collapsed := false
	if from%HugePageBytes == 0 && (to-from)%HugePageBytes == 0 {
		_ = unix.Madvise(b[:os.Getpagesize()], unix.MADV_POPULATE_WRITE)
		collapsed = unix.Madvise(b, unix.MADV_COLLAPSE) == nil
	}
	_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE) // faults do it otherwise
	return collapsed
}

// Close unmaps the memory, which must not be populated any more.
func (m *Memory) Close() error {
	var err error
	if m.reserved != nil {
		err = unix.MunmapPtr(m.reserved, m.reservedBytes)
		m.reserved, m.Bytes = nil, nil
	}
	for _, f := range [...]*os.File{m.File, m.Writable} {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}
