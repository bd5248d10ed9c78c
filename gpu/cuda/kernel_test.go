package cuda

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/choice"
	"github.com/kvconn/kvconn/gpu/region"
)

// byKernel has the next copies of all sizes go by the kernel, tries apart.
func byKernel(t *testing.T, r *rig) {
	t.Helper()
	p := copierOf(t, r)
	for d := range uint8(2) {
		for size := range 16 {
			for count := 4; count < 14; count++ {
				runs, bytes := 1<<count, uint64(1)<<(size+count)
				for range 20 {
					p.device.learnt.Learn(d, runs, bytes, choice.Batch, bytes*1e6)
					p.device.learnt.Learn(d, runs, bytes, choice.Kernel, 1)
				}
			}
		}
	}
}

// smallRuns are pieces of up to 600 bytes that lie anywhere in a region of two allocations, each followed by a gap, and one
// after the other in stretches of the arena, in another order.
func smallRuns(r *rig, n int) []gpu.Piece {
	const room = 1024
	rng := rand.New(rand.NewPCG(uint64(n), 3))
	var pieces []gpu.Piece
	at := int64(7)
	for i, slot := range rng.Perm(2 * granularity / room)[:n] {
		if i%10 == 0 {
			at = (at + 5000) &^ 4095
		}
		size := int64(1 + rng.IntN(600))
		if i%3 == 0 {
			size = 512 // vectors
		}
		p := r.piece(0, int64(slot)*room+int64(rng.IntN(2))*16, at, size)
		p.Host = p.Host[:size:size]
		pieces = append(pieces, p)
		at += size
	}
	return pieces
}

// checkCopies saves and loads many small runs and compares every byte of the engine's memory and of the pieces.
func checkCopies(t *testing.T, r *rig, e *testEngine, m gpu.Memory, n int) error {
	t.Helper()
	pieces := smallRuns(r, n)
	e.fill(e.last, 0, 2*granularity, 1)
	clear(r.arena)
	if err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: slices.Clone(pieces)}); err != nil {
		return err
	}
	sum := 0
	for i := range pieces {
		p := &pieces[i]
		for j, got := range p.Host {
			if got != pattern(1, int64(p.Offset)+int64(j)) {
				t.Fatalf("run %d at %d: a wrong byte was saved", i, j)
			}
		}
		sum += len(p.Host)
		clear(p.Host)
	}
	for at, b := range r.arena {
		if b != 0 {
			t.Fatalf("a byte beside the runs was written in the arena at %d", at)
		}
	}
	// Loading brings another pattern, and what is between stays.
	for i := range pieces {
		for j := range pieces[i].Host {
			pieces[i].Host[j] = pattern(2, int64(pieces[i].Offset)+int64(j))
		}
	}
	if err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Load, Pieces: slices.Clone(pieces)}); err != nil {
		return err
	}
	slices.SortFunc(pieces, func(a, b gpu.Piece) int { return int(a.Offset) - int(b.Offset) })
	var at int64
	for i := range pieces {
		p := &pieces[i]
		e.wants(e.last, at, int64(p.Offset)-at, 1)
		e.wants(e.last, int64(p.Offset), int64(len(p.Host)), 2)
		at = int64(p.Offset) + int64(len(p.Host))
	}
	e.wants(e.last, at, 2*granularity-at, 1)
	return nil
}

func TestKernelsMoveTheSameBytes(t *testing.T) {
	for _, version := range versions {
		for _, kind := range []region.Kind{region.IPC, region.VMM} {
			t.Run(fmt.Sprint(version, kind), func(t *testing.T) {
				t.Parallel()
				env := versionEnv(version)
				e, r := startEngine(t, 0, env...), newRig(t, nil, env...)
				m := r.open(e.region(kind, granularity, granularity))
				byKernel(t, r)
				for _, n := range []int{16, 300} {
					if err := checkCopies(t, r, e, m, n); err != nil {
						t.Fatal(err)
					}
				}
				if s := r.Devices()[0]; s.KernelBatches != 4 || s.KernelError != "" || len(s.Copies) == 0 || s.Copies[0].By != "kernel" {
					t.Errorf("%d of %d batches by the kernel, %q, %v", s.KernelBatches, s.Batches, s.KernelError, s.Copies)
				}
			})
		}
	}
}

// A driver that refuses kernels costs nothing but them.
func TestRefusedKernelsLeaveBatches(t *testing.T) {
	for fault, isTold := range map[string]bool{
		"cuModuleLoadDataEx:*:218": true, "cuModuleLoadDataEx:*:222": true, "cuModuleGetFunction:*:500": true, "cuModuleGetFunction:2:500": true,
		"cuMemAlloc:*:2": true, "cuMemAlloc:4:2": true, "cuMemHostRegister:*:2": true, "cuMemHostRegister:8:2": true,
		"cuLaunchKernel:*:701": false, "cuLaunchKernel:1:999": false,
	} {
		for _, version := range []string{"12040", "13050"} {
			t.Run(fault+"/"+version, func(t *testing.T) {
				t.Parallel()
				env := "FAKECUDA_VERSION=" + version
				e, r := startEngine(t, 0, env), newRig(t, nil, env, "FAKECUDA_FAULT="+fault)
				m := r.open(e.region(region.IPC, granularity, granularity))
				byKernel(t, r)
				if err := checkCopies(t, r, e, m, 100); err != nil {
					t.Fatal(err)
				}
				// Each lane asks for itself, so one refused launch leaves the other direction's.
				if s := r.Devices()[0]; s.Starts != 1 || s.Batches != 2 || s.KernelBatches > 1 || isTold != (s.KernelError != "") {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A kernel that ends the context, hangs or crashes costs the copier. Nothing that was called right is wrong, and the next
// copier serves.
func TestFaultsOfKernelsCostTheCopier(t *testing.T) {
	for _, what := range []string{"sticky=700", "async=700", "async=719", "stall", "hang", "segv"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			control := filepath.Join(t.TempDir(), "control")
			e, r := startEngine(t, 0), newRig(t, deadlinesFor(what), "FAKECUDA_CONTROL="+control)
			m := r.open(e.region(region.IPC, granularity, granularity))
			byKernel(t, r)
			order(t, control, withKernels[0]+":1:"+what)
			if err := checkCopies(t, r, e, m, 100); !errors.Is(err, gpu.ErrLost) {
				t.Errorf("%v", err)
			}
			if err := os.Remove(control); err != nil {
				t.Fatal(err)
			}
			awaitTrue(t, "the GPU serves again", func() bool {
				var err error
				m, err = r.Open(e.region(region.IPC, granularity, granularity))
				return err == nil
			})
			if err := checkCopies(t, r, e, m, 100); err != nil {
				t.Error(err)
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Kernels that end their copier each time are given up: ranks are not lost again and again.
func TestKernelsThatEndCopiersAreGivenUp(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, impatient, "FAKECUDA_FAULT=cuLaunchKernel:*:async=700")
	file := func() []*os.File { return e.region(region.IPC, granularity, granularity) }
	m, lost := r.open(file()), 0
	pieces := smallRuns(r, 100)
	for range 2000 {
		err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: slices.Clone(pieces)})
		if err == nil {
			continue
		}
		if lost++; !errors.Is(err, gpu.ErrLost) {
			t.Fatal(err)
		}
		awaitTrue(t, "the GPU serves again", func() bool {
			next, err := r.Open(file())
			if err == nil {
				m = next
			}
			return err == nil
		})
	}
	if s := r.Devices()[0]; lost == 0 || lost > 4 || s.KernelError != errKernelLost {
		t.Errorf("%d copiers were lost, %q", lost, s.KernelError)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// Where each copy costs much, as on a driver without batches whose operations are slow, the kernel's few are found to be faster;
// where they cost nothing the interpreter of the stand-in is slower than copies.
func TestTheChoiceFollowsDelays(t *testing.T) {
	for delay, want := range map[string]string{"FAKECUDA_DELAY_US=100": "kernel", "FAKECUDA_DELAY_US=0": "batch"} {
		t.Run(delay, func(t *testing.T) {
			t.Parallel()
			e, r := startEngine(t, 0), newRig(t, nil, delay, "FAKECUDA_VERSION=12040")
			m := r.open(e.region(region.IPC, granularity, granularity))
			pieces := smallRuns(r, 100)
			awaitTrue(t, "both ways were tried enough", func() bool {
				for range 64 {
					if err := m.Copy(t.Context(), &gpu.Batch{Direction: gpu.Save, Pieces: slices.Clone(pieces)}); err != nil {
						t.Fatal(err)
					}
				}
				c := r.Devices()[0].Copies
				return len(c) == 1 && c[0].By == want && c[0].Direction == "save"
			})
		})
	}
}
