package memory

import (
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A system without reserved huge pages refuses the mapping. What other threads have mapped
// meanwhile must be left alone: it may be anything, their stacks included.
func TestRefusedHugePagesLeaveOthersMappingsAlone(t *testing.T) {
	const size = 64 << 20
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var lost, rounds int
	wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for {
			select {
			case <-stop:
				return
			default:
			}
			m, err := unix.MmapPtr(-1, 0, nil, size/2, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
			if err != nil {
				continue
			}
			rounds++
			var present [1]byte
			runtime.Gosched()
			if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(m), 4096, uintptr(unsafe.Pointer(&present))); e != 0 {
				lost++
				continue
			}
			_ = unix.MunmapPtr(m, size/2)
		}
	})
	for range 2000 {
		if m, err := mapMemory(size, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB); err == nil {
			_ = m.Close()
		}
	}
	close(stop)
	wg.Wait()
	if lost > 0 {
		t.Errorf("%d of %d mappings of another thread are gone", lost, rounds)
	}
}
