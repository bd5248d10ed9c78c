package cuda

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
)

const benchRunBytes = 256

// batchOf is a batch of many small runs: what is measured is the way to the copier and back, not the copies.
func batchOf(r *rig, runs int) *gpu.Batch {
	b := &gpu.Batch{Direction: gpu.Save}
	for i := range int64(runs) {
		b.Pieces = append(b.Pieces, r.piece(0, 2*i*benchRunBytes, i*benchRunBytes, benchRunBytes))
	}
	return b
}

func TestCopyingDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	e, r := startEngine(t, 0), newRig(t, nil)
	m := r.open(e.region(region.IPC, 4<<20))
	for _, runs := range []int{1, 64, 4096} {
		b := batchOf(r, runs)
		if n := testing.AllocsPerRun(50, func() {
			if err := m.Copy(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%d runs: %v allocations", runs, n)
		}
	}
}

// BenchmarkRoundTrip is a batch's way to the copier, through the stand-in's streams, and back, beside the host driver
// with the same runs.
func BenchmarkRoundTrip(b *testing.B) {
	for _, runs := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("copier/runs=%d", runs), func(b *testing.B) {
			e, r := startEngine(b, 0), newRig(b, nil)
			benchCopies(b, r, r.open(e.region(region.IPC, 4<<20)), runs)
		})
		b.Run(fmt.Sprintf("host/runs=%d", runs), func(b *testing.B) {
			r := newRig(b, nil)
			fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC)
			if err != nil {
				b.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "kv")
			defer func() { _ = f.Close() }()
			if err := f.Truncate(4 << 20); err != nil {
				b.Fatal(err)
			}
			benchCopies(b, r, r.open([]*os.File{f}), runs)
		})
	}
}

func benchCopies(b *testing.B, r *rig, m gpu.Memory, runs int) {
	batch := batchOf(r, runs)
	var before, after unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &before); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if err := m.Copy(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	if err := unix.Getrusage(unix.RUSAGE_SELF, &after); err != nil {
		b.Fatal(err)
	}
	cpu := after.Utime.Nano() - before.Utime.Nano() + after.Stime.Nano() - before.Stime.Nano()
	b.ReportMetric(float64(cpu)/float64(b.N), "daemon-cpu-ns/op")
}
