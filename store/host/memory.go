package host

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePageBytes = 2 << 20

// memory is a sealed memfd and its mapping, aligned to huge pages.
type memory struct {
	file  *os.File
	bytes []byte
	// reserved is the address range that the mapping lies in.
	reserved      unsafe.Pointer
	reservedBytes uintptr
	// explicit is set if the pages are of the reserved pool (vm.nr_hugepages).
	explicit bool
}

// newMemory maps size bytes of shared memory: of the pool of huge pages if it has room.
func newMemory(size int64) (*memory, error) {
	if size%hugePageBytes == 0 {
		if m, err := mapMemory(size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB); err == nil {
			m.explicit = true
			return m, nil
		}
	}
	m, err := mapMemory(size, 0)
	if err == nil {
		// Advice: it is followed where the kernel's shmem_enabled says so.
		_ = unix.Madvise(m.bytes, unix.MADV_HUGEPAGE)
	}
	return m, err
}

func mapMemory(size int64, flags int) (_ *memory, err error) {
	fd, err := unix.MemfdCreate("kvconn-host", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("make shared memory: %w", err)
	}
	m := &memory{file: os.NewFile(uintptr(fd), "kvconn-host")}
	defer func() {
		if err != nil {
			_ = m.close()
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
	// A process that is given the descriptor can neither truncate the memory nor write to it: this
	// mapping stays the only writable one.
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, fmt.Errorf("seal shared memory: %w", err)
	}
	return m, nil
}

// mapAnywhere maps a file of huge pages, which the kernel aligns, or refuses.
func (m *memory) mapAnywhere(fd int, size int64) error {
	at, err := unix.MmapPtr(fd, 0, nil, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	m.reserved, m.reservedBytes = at, uintptr(size)
	m.bytes = unsafe.Slice((*byte)(at), size)
	return nil
}

// mapAligned maps a file at an address that may become a huge page.
func (m *memory) mapAligned(fd int, size int64) error {
	n := uintptr(size) + hugePageBytes
	reserved, err := unix.MmapPtr(-1, 0, nil, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return fmt.Errorf("reserve %d bytes of addresses: %w", n, err)
	}
	at := unsafe.Add(reserved, -uintptr(reserved)&(hugePageBytes-1))
	at, err = unix.MmapPtr(fd, 0, at, uintptr(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		// A refused MAP_FIXED may have taken the reservation away, and what lies there now
		// may be another's: the addresses are given up.
		return err
	}
	m.reserved, m.reservedBytes = reserved, n
	m.bytes = unsafe.Slice((*byte)(at), size)
	return nil
}

// populate faults a range in, as a huge page if the range is one and the kernel has one free.
// Collapsing needs no setting of the system, but copies: the range first gets a single page for
// that. It reports whether the range became huge. Bytes in use stay as they are.
func (m *memory) populate(from, to int64) bool {
	b := m.bytes[from:to]
	if m.explicit {
		return unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil
	}
	collapsed := false
	if from%hugePageBytes == 0 && (to-from)%hugePageBytes == 0 {
		_ = unix.Madvise(b[:os.Getpagesize()], unix.MADV_POPULATE_WRITE)
		collapsed = unix.Madvise(b, unix.MADV_COLLAPSE) == nil
	}
	_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE) // faults do it otherwise
	return collapsed
}

func (m *memory) close() error {
	var err error
	if m.reserved != nil {
		err = unix.MunmapPtr(m.reserved, m.reservedBytes)
		m.reserved, m.bytes = nil, nil
	}
	return errors.Join(err, m.file.Close())
}
