package gpu

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func memfd(t *testing.T, size int64) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "kv")
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestHostCopiesAreSeenByBothSides(t *testing.T) {
	f := memfd(t, 1<<16)
	d := new(HostDriver)
	r, err := d.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	in := bytes.Repeat([]byte("kv"), 100)
	if err := d.CopyIn(t.Context(), []Piece{{r, 300, in}, {r, 1 << 15, in}}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(in))
	if _, err := f.ReadAt(got, 1<<15); err != nil || !bytes.Equal(got, in) {
		t.Errorf("the engine sees %q, %v", got[:8], err)
	}
	if _, err := f.WriteAt([]byte("from the engine"), 300); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 15)
	if err := d.CopyOut(t.Context(), []Piece{{r, 300, out}}); err != nil || string(out) != "from the engine" {
		t.Errorf("CopyOut = %q, %v", out, err)
	}
}

func TestHostRefusesPiecesOutsideOfTheRegion(t *testing.T) {
	d := new(HostDriver)
	r, err := d.Open(memfd(t, 4096))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for _, offset := range []uint64{4096, 4089, 1 << 63, ^uint64(0)} {
		if err := d.CopyIn(t.Context(), []Piece{{r, offset, make([]byte, 8)}}); !errors.Is(err, ErrBounds) {
			t.Errorf("8 bytes at %d: %v, want ErrBounds", offset, err)
		}
	}
}

// An engine that truncates its memory would kill a daemon that touches it.
func TestHostSurvivesVanishedMemory(t *testing.T) {
	f := memfd(t, 1<<16)
	d := new(HostDriver)
	r, err := d.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if err := d.CopyIn(t.Context(), []Piece{{r, 0, make([]byte, 4096)}}); !errors.Is(err, ErrFault) {
		t.Errorf("CopyIn = %v, want ErrFault", err)
	}
	if err := d.CopyOut(t.Context(), []Piece{{r, 8192, make([]byte, 4096)}}); !errors.Is(err, ErrFault) {
		t.Errorf("CopyOut = %v, want ErrFault", err)
	}
}

func TestHostRefusesWhatIsNoSharedMemory(t *testing.T) {
	d := new(HostDriver)
	if _, err := d.Open(memfd(t, 0)); !errors.Is(err, ErrNotShared) {
		t.Errorf("empty descriptor: %v, want ErrNotShared", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if _, err := d.Open(null); !errors.Is(err, ErrNotShared) {
		t.Errorf("/dev/null: %v, want ErrNotShared", err)
	}
	readOnly, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = readOnly.Close() }()
	if _, err := d.Open(readOnly); !errors.Is(err, ErrNotShared) {
		t.Errorf("read-only file: %v, want ErrNotShared", err)
	}
}

func TestHostCopyDoesNotAllocate(t *testing.T) {
	d := new(HostDriver)
	r, err := d.Open(memfd(t, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	pieces := []Piece{{r, 0, make([]byte, 4096)}, {r, 8192, make([]byte, 4096)}}
	if n := testing.AllocsPerRun(100, func() { _ = d.CopyIn(t.Context(), pieces) }); n != 0 {
		t.Errorf("%v allocations a copy, want 0", n)
	}
}
