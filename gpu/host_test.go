package gpu

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

func open(t *testing.T, files ...*os.File) Memory {
	t.Helper()
	m, err := new(HostDriver).Open(files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestHostCopiesAreSeenByBothSides(t *testing.T) {
	f := memfd.New(t, 1<<16)
	m := open(t, memfd.New(t, 4096), f)
	in := bytes.Repeat([]byte("kv"), 100)
	if err := m.Copy(t.Context(), &Batch{Direction: Load, Pieces: []Piece{{1, 300, in}, {1, 1 << 15, in}, {0, 0, in}}}); err != nil {
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
	if err := m.Copy(t.Context(), &Batch{Direction: Save, Pieces: []Piece{{1, 300, out}}}); err != nil || string(out) != "from the engine" {
		t.Errorf("saved %q, %v", out, err)
	}
}

// Neighbours are joined, wherever they are in the list.
func TestHostCopiesBatchesInAnyOrderWhole(t *testing.T) {
	const size = 16 << 20
	f := memfd.New(t, size)
	m := open(t, f)
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i * 7 >> 3)
	}
	var pieces []Piece
	for at := 0; at < size; at += 64 << 10 {
		from := size - at - 64<<10 // in reverse
		pieces = append(pieces, Piece{0, uint64(from), want[from : from+64<<10]})
	}
	if err := m.Copy(t.Context(), &Batch{Direction: Load, Pieces: pieces}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, size)
	if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("bytes differ, %v", err)
	}
}

func TestMergeJoinsNeighboursOnly(t *testing.T) {
	host := make([]byte, 100)
	other := make([]byte, 10)
	got := Merge([]Piece{{0, 30, host[30:40]}, {0, 10, host[10:20]}, {0, 20, host[20:30]}, {1, 40, host[40:50]}, {0, 40, other}, {0, 60, host[70:80]}})
	if len(got) != 4 || len(got[0].Host) != 30 || got[0].Offset != 10 || &got[0].Host[29] != &host[39] {
		t.Errorf("merged to %d pieces, the first of %d bytes at %d", len(got), len(got[0].Host), got[0].Offset)
	}
	if got := Merge([]Piece{{0, 0, host[:10:10]}, {0, 10, host[10:20]}}); len(got) != 2 {
		t.Error("joined after a slice that ends there")
	}
}

func TestHostRefusesPiecesOutsideOfTheRegion(t *testing.T) {
	m := open(t, memfd.New(t, 4096))
	for _, p := range []Piece{{0, 4096, nil}, {0, 4089, nil}, {0, 1 << 63, nil}, {0, ^uint64(0), nil}, {1, 0, nil}} {
		p.Host = make([]byte, 8)
		if err := m.Copy(t.Context(), &Batch{Pieces: []Piece{p}}); !errors.Is(err, ErrBounds) {
			t.Errorf("8 bytes at %d of region %d: %v, want ErrBounds", p.Offset, p.Region, err)
		}
	}
}

// An engine that truncates its memory would kill a daemon that touches it.
func TestHostSurvivesVanishedMemory(t *testing.T) {
	f := memfd.New(t, 1<<16)
	m, whole := open(t, f), open(t, memfd.New(t, 1<<16))
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	for _, d := range []Direction{Load, Save} {
		if err := m.Copy(t.Context(), &Batch{Direction: d, Pieces: []Piece{{0, 8192, make([]byte, 4096)}}}); !errors.Is(err, ErrLost) {
			t.Errorf("direction %d: %v, want ErrLost", d, err)
		}
		if err := whole.Copy(t.Context(), &Batch{Direction: d, Pieces: []Piece{{0, 8192, make([]byte, 4096)}}}); err != nil {
			t.Errorf("another rank's memory: %v", err)
		}
	}
}

func TestHostRefusesWhatIsNoSharedMemory(t *testing.T) {
	d := new(HostDriver)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	readOnly, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = readOnly.Close() }()
	for name, f := range map[string]*os.File{"empty descriptor": memfd.New(t, 0), "/dev/null": null, "file": readOnly} {
		if _, err := d.Open([]*os.File{memfd.New(t, 4096), f}); !errors.Is(err, ErrNotShared) {
			t.Errorf("%s: %v, want ErrNotShared", name, err)
		}
	}
}

func TestHostCopyDoesNotAllocate(t *testing.T) {
	m := open(t, memfd.New(t, 1<<16))
	b := &Batch{Pieces: []Piece{{0, 0, make([]byte, 4096)}, {0, 8192, make([]byte, 4096)}}}
	if n := testing.AllocsPerRun(100, func() { _ = m.Copy(t.Context(), b) }); n != 0 {
		t.Errorf("%v allocations a copy, want 0", n)
	}
}

// What the engine has touched is mapped before the first copy; what it has not stays untouched until
// it has.
func TestHostMapsThePagesThatTheEngineHasMade(t *testing.T) {
	const size = 40 << 20
	made, blank := memfd.New(t, size), memfd.New(t, size)
	if err := unix.Fallocate(int(made.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	m := open(t, made, blank).(*hostMemory)
	awaitMapped(t, m.regions[0])
	var st unix.Stat_t
	if err := unix.Fstat(int(blank.Fd()), &st); err != nil || st.Blocks != 0 {
		t.Errorf("%d blocks of untouched memory were made, %v", st.Blocks, err)
	}
	if err := unix.Fallocate(int(blank.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	awaitMapped(t, m.regions[1])
}

// Memory whose pages the engine never makes is given back at once.
func TestHostMemoryIsGivenBackWhilePagesAreAwaited(t *testing.T) {
	m := open(t, memfd.New(t, 1<<20)).(*hostMemory)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	m.populating.Wait()
}

// awaitMapped waits until all of a mapping is in this process's page tables; the test's own limit
// ends it.
func awaitMapped(t *testing.T, mem []byte) {
	t.Helper()
	for mappedBytes(t, mem) != len(mem) {
		time.Sleep(time.Millisecond)
	}
}

// mappedBytes is how much of a mapping this process has in its page tables.
func mappedBytes(t *testing.T, mem []byte) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(text), fmt.Sprintf("\n%x-", uintptr(unsafe.Pointer(unsafe.SliceData(mem)))))
	_, after, found := strings.Cut(after, "\nRss:")
	var kib int
	if _, err := fmt.Sscanf(after, "%d", &kib); err != nil || !ok || !found {
		t.Fatalf("no size of the mapping: %v", err)
	}
	return kib << 10
}

// Memory that is given back while it is mapped is unmapped once.
func TestHostMemoryIsGivenBackWhileItIsMapped(t *testing.T) {
	const size = 256 << 20
	f := memfd.New(t, size)
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Fatal(err)
	}
	m, err := new(HostDriver).Open([]*os.File{f})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
