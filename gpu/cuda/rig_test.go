package cuda

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/fakecuda"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

const testArenaBytes = 8 << 20

// rig is a driver with an arena, and no GPU but the stand-in's.
type rig struct {
	*Driver
	t     testing.TB
	arena []byte
}

// newRig makes a driver whose copiers have the settings of the stand-in.
func newRig(t testing.TB, change func(*Options), env ...string) *rig {
	t.Helper()
	return newRigOf(t, testArenaBytes, change, env...)
}

// newRigOf is newRig with another size of the arena.
func newRigOf(t testing.TB, arenaBytes int, change func(*Options), env ...string) *rig {
	t.Helper()
	library := fakeLibrary(t)
	if !fakecuda.Real() { // TestMain compares it
		env = append([]string{"FAKECUDA_CALLED=" + filepath.Join(fakeDir, "called")}, env...)
	}
	o := Options{Library: library, Command: asRole(t, "copier", env...)}
	if change != nil {
		change(&o)
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	f := memfd.New(t, int64(arenaBytes))
	mem, err := unix.Mmap(int(f.Fd()), 0, arenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	unpin, err := d.PinHost(f, mem)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unpin(); err != nil {
			t.Error(err)
		}
		_ = unix.Munmap(mem)
	})
	return &rig{Driver: d, t: t, arena: mem}
}

// open opens what an engine passed.
func (r *rig) open(files []*os.File) gpu.Memory {
	r.t.Helper()
	m, err := r.Open(files)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return m
}

// piece is n bytes of a region, and where they lie in the arena.
func (r *rig) piece(region int, offset, at, n int64) gpu.Piece {
	return gpu.Piece{Region: uint32(region), Offset: uint64(offset), Host: r.arena[at : at+n : at+n]}
}

// fillHost writes what a region filled with the seed has at an offset.
func (r *rig) fillHost(at, n, offset int64, seed uint64) {
	for i := range n {
		r.arena[at+i] = pattern(seed, offset+i)
	}
}

func (r *rig) hostWants(at, n, offset int64, seed uint64) {
	r.t.Helper()
	for i := range n {
		if r.arena[at+i] != pattern(seed, offset+i) {
			r.t.Errorf("a wrong byte in the arena at %d, of %d from %d on", at+i, n, at)
			return
		}
	}
}
