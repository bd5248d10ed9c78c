package host

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store/host/memory"
)

// canCollapse reports whether this system makes huge pages of shared memory.
func canCollapse(t *testing.T) bool {
	t.Helper()
	m, err := memory.New(2 * memory.HugePageBytes)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if err := unix.Madvise(m.Bytes, unix.MADV_POPULATE_WRITE); err != nil {
		return false
	}
	return unix.Madvise(m.Bytes[:memory.HugePageBytes], unix.MADV_COLLAPSE) == nil
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
