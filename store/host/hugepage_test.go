package host

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// canCollapse reports whether this system makes huge pages of shared memory.
func canCollapse(t *testing.T) bool {
	t.Helper()
	m, err := newMemory(2 * hugePageBytes)
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
	a, err := New(Options{Bytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); a.Stats().PopulatedBytes < 8<<20; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the arena is not populated")
		}
	}
	if a.Stats().HugeBytes == 0 && canCollapse(t) {
		t.Error("no byte is in huge pages")
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}
