package host

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// canCollapse reports whether this system makes huge pages of shared memory.
func canCollapse(t *testing.T) bool {
	t.Helper()
	m, err := newMemory(2*hugePageBytes, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.close() }()
	if err := unix.Madvise(m.bytes, unix.MADV_POPULATE_WRITE); err != nil {
		return false
	}
	return unix.Madvise(m.bytes[:hugePageBytes], unix.MADV_COLLAPSE) == nil
}

// Reads into small pages are up to two fifths slower.
func TestArenaIsInHugePagesWhereTheSystemHasThem(t *testing.T) {
	if !canCollapse(t) {
		t.Skip("this system makes no huge pages of shared memory")
	}
	for _, small := range []bool{false, true} {
		a, err := New(Options{Bytes: 8 << 20, SmallPages: small})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); a.Stats().PopulatedBytes < 8<<20; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the arena is not populated")
			}
		}
		n := a.Stats().HugeBytes
		if n == 0 && !small && !canCollapse(t) {
			t.Skip("the system has run out of huge pages meanwhile")
		}
		if small != (n == 0) {
			t.Errorf("%d bytes in huge pages, small pages wanted: %t", n, small)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
