package cuda

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
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
		if n := testing.AllocsPerRun(10, func() {
			if err := m.Copy(t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%d runs: %v allocations", runs, n)
		}
	}
}

// BenchmarkRoundTrip is a batch's way to the copier, through the stand-in's streams, and back, beside the host driver
// with the same runs. The copier's processor time has that of the stand-in's streams in it, which copy.
func BenchmarkRoundTrip(b *testing.B) {
	for _, runs := range []int{1, 64, 4096} {
		b.Run(fmt.Sprintf("copier/runs=%d", runs), func(b *testing.B) {
			e, r := startEngine(b, 0), newRig(b, nil)
			m := r.open(e.region(region.IPC, 4<<20))
			benchCopies(b, r, m, runs, m.(*memory).c.cmd.Process.Pid)
		})
		b.Run(fmt.Sprintf("host/runs=%d", runs), func(b *testing.B) {
			r := newRig(b, nil)
			benchCopies(b, r, r.open([]*os.File{memfd.New(b, 4<<20)}), runs, 0)
		})
	}
}

// benchCopies measures copies, with the processor time of this process and of the copier, unless that is 0.
func benchCopies(b *testing.B, r *rig, m gpu.Memory, runs, copier int) {
	batch := batchOf(r, runs)
	daemon, other := processorTime(b, os.Getpid()), int64(0)
	if copier != 0 {
		other = processorTime(b, copier)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		if err := m.Copy(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processorTime(b, os.Getpid())-daemon)/float64(b.N), "daemon-cpu-ns/op")
	if copier != 0 {
		b.ReportMetric(float64(processorTime(b, copier)-other)/float64(b.N), "copier-cpu-ns/op")
	}
}

// processorTime of all threads that a process has and had, in nanoseconds.
func processorTime(b *testing.B, pid int) int64 {
	b.Helper()
	clock := int32(^pid<<3 | 2) // as clock_getcpuclockid(3) makes it
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		b.Fatal(err)
	}
	return ts.Nano()
}
