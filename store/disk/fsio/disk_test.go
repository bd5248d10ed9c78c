package fsio

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/store"
)

func openTest(t *testing.T, direct bool) File {
	t.Helper()
	f, err := OS{}.OpenFile(filepath.Join(t.TempDir(), "file"), true, direct)
	if errors.Is(err, ErrNoDirectIO) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestVectorsRoundTrip(t *testing.T) {
	for _, direct := range []bool{true, false} {
		f := openTest(t, direct)
		a, b := store.AlignedBuffer(Align), store.AlignedBuffer(3*Align)
		for i := range b {
			b[i] = byte(i / 7)
		}
		a[5] = 9
		if err := errors.Join(f.Allocate(10*Align), f.WriteVec(a, b, 2*Align), f.Datasync()); err != nil {
			t.Fatal(err)
		}
		c, d := store.AlignedBuffer(Align), store.AlignedBuffer(3*Align)
		if err := f.ReadVec(c, d, 2*Align); err != nil || !bytes.Equal(a, c) || !bytes.Equal(b, d) {
			t.Errorf("direct %v: %v", direct, err)
		}
		if err := f.ReadVec(c, d, 8*Align); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("direct %v: beyond the end: %v", direct, err)
		}
		size, err := f.Size()
		physical, err2 := f.PhysicalBytes()
		if err != nil || err2 != nil || size != 10*Align || physical < size {
			t.Errorf("size %d, physical %d, %v, %v", size, physical, err, err2)
		}
	}
}

func TestVectorIODoesNotAllocate(t *testing.T) {
	f := openTest(t, false)
	a, b := store.AlignedBuffer(Align), store.AlignedBuffer(Align)
	if n := testing.AllocsPerRun(100, func() {
		if err := errors.Join(f.WriteVec(a, b, 0), f.ReadVec(a, b, 0)); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAlignment(t *testing.T) {
	for _, n := range []int{1, 4095, 4096, 4097, 1 << 20} {
		b := store.AlignedBuffer(n)
		if len(b) != n || cap(b) != AlignUp(n) || !Aligned(b) {
			t.Errorf("%d bytes: length %d, capacity %d, aligned %v", n, len(b), cap(b), Aligned(b))
		}
	}
	if Aligned(nil) || Aligned(store.AlignedBuffer(10)[1:]) {
		t.Error("what is not aligned passes")
	}
}

func TestLockNamesItsHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	lock, err := OS{}.Lock(path, "someone")
	if err != nil {
		t.Fatal(err)
	}
	_, err = OS{}.Lock(path, "another")
	var locked *LockedError
	if !errors.As(err, &locked) || locked.Holder != "someone" {
		t.Errorf("error %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = (OS{}).Lock(path, "another"); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}

// A process that is being started has copies of all descriptors for a moment.
func TestLockEndsThoughItsDescriptorWasCopied(t *testing.T) {
	path := filepath.Join(t.TempDir(), "LOCK")
	lock, err := OS{}.Lock(path, "someone")
	if err != nil {
		t.Fatal(err)
	}
	duplicate, err := unix.Dup(int(lock.(interface{ Fd() uintptr }).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(duplicate) }()
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = (OS{}).Lock(path, "another"); err != nil {
		t.Fatal(err)
	}
	_ = lock.Close()
}

func TestAtomicWriteReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, text := range []string{"one", "another"} {
		if err := (OS{}).WriteFileAtomic(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if b, err := (OS{}).ReadFile(path); err != nil || string(b) != text {
			t.Errorf("%q, %v", b, err)
		}
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files are left", len(entries))
	}
}
