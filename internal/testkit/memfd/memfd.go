// Package memfd makes memory that processes can share, as engines do.
package memfd

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// New returns a memory file of a size, which is closed when the test ends.
func New(t testing.TB, sizeBytes int64) *os.File {
	t.Helper()
	return create(t, sizeBytes, 0)
}

// Sealable is [New] of a file that can be sealed.
func Sealable(t testing.TB, sizeBytes int64) *os.File {
	t.Helper()
	return create(t, sizeBytes, unix.MFD_ALLOW_SEALING)
}

func create(t testing.TB, sizeBytes int64, flags int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC|flags)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "kv")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(sizeBytes); err != nil {
		t.Fatal(err)
	}
	return f
}
