package cuda

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/gpu/ring"
)

// rings counts the mappings of rings in this process.
func rings(t *testing.T) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "memfd:kvconn-ring")
}

// However often copiers end, in copies or beside them, nothing of them stays.
func TestNothingIsLeftOfManyCopiers(t *testing.T) {
	r, e := newRig(t, func(o *Options) { o.RestartPause, o.RestartPauseMax = time.Microsecond, time.Microsecond }), startEngine(t, 0)
	files := e.region(region.IPC, granularity)
	descriptors, goroutines, mapped := openDescriptors(t), runtime.NumGoroutine(), rings(t)
	for n := range 50 {
		var m gpu.Memory
		awaitTrue(t, "a copier", func() bool {
			var err error
			m, err = r.Open(files)
			return err == nil
		})
		p := copierOf(t, r)
		var wait sync.WaitGroup
		for i := range 4 {
			wait.Go(func() {
				b := gpu.Batch{Direction: gpu.Direction(i % 2), Pieces: []gpu.Piece{r.piece(0, int64(i)<<16, int64(i)<<16, 1<<16)}}
				for m.Copy(t.Context(), &b) == nil {
				}
			})
		}
		if n%2 == 0 {
			p.end(errEnded)
		} else if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wait.Wait()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	awaitTrue(t, "nothing is left", func() bool {
		return openDescriptors(t) <= descriptors && runtime.NumGoroutine() <= goroutines && rings(t) <= mapped
	})
}

// A copy that is given up as it waits for a slot takes none.
func TestACopyThatIsGivenUpTakesNoSlot(t *testing.T) {
	r, e := newRig(t, nil), startEngine(t, 0)
	m := r.open(e.region(region.IPC, granularity))
	p := copierOf(t, r)
	var taken []int
	for range ring.Slots {
		taken = append(taken, <-p.free)
	}
	b := func() *gpu.Batch {
		return &gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Copy(ctx, b()); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for _, i := range taken {
		p.free <- i
	}
	for range 3 * ring.Slots {
		if err := m.Copy(t.Context(), b()); err != nil {
			t.Fatal(err)
		}
		// Refused before it has a slot, or with one.
		_ = m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{{Region: 7}}})
	}
	if len(p.free) != ring.Slots {
		t.Errorf("%d slots are free, want %d", len(p.free), ring.Slots)
	}
}

// Pieces by the limit of a batch, and memory that could not be locked.
func TestManyPiecesOfMemoryThatIsNotLocked(t *testing.T) {
	const bytes = 64
	r, e := newRig(t, nil, "FAKECUDA_PIN_BYTES=4096"), startEngine(t, 0)
	m := r.open(e.region(region.VMM, granularity, granularity))
	save := func(n int) {
		t.Helper()
		e.fill(0, 0, granularity, uint64(n))
		clear(r.arena)
		b := gpu.Batch{Direction: gpu.Save}
		for i := range int64(n) {
			b.Pieces = append(b.Pieces, r.piece(0, i*2*bytes, i*bytes, bytes))
		}
		if err := m.Copy(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int64{0, int64(n) - 2, int64(n) - 1} {
			r.hostWants(i*bytes, bytes, i*2*bytes, uint64(n))
		}
	}
	for _, n := range []int{ring.MaxRuns - 1, ring.MaxRuns, ring.MaxRuns + 1, 2*ring.MaxRuns + 1} {
		save(n)
	}
}

// An operator sees what of the host tier is locked, and why not all is.
func TestStatusSaysHowMuchIsLocked(t *testing.T) {
	const chunk = 256 << 20 // of one registration
	// The copier locks lists for its kernels first: 8, of 64 KiB each.
	for name, tc := range map[string]struct {
		env   string
		bytes int64
		why   string
	}{
		"all":      {"", chunk + 1<<20, ""},
		"a chunk":  {"FAKECUDA_PIN_BYTES=269059744", chunk, "OUT_OF_MEMORY (2)"},
		"none":     {"FAKECUDA_PIN_BYTES=4096", 0, "OUT_OF_MEMORY (2)"},
		"an error": {"FAKECUDA_FAULT=cuMemHostRegister:10:801", chunk, "NOT_SUPPORTED (801)"},
	} {
		t.Run(name, func(t *testing.T) {
			r, e := newRigOf(t, chunk+1<<20, nil, strings.Fields(tc.env)...), startEngine(t, 0)
			r.open(e.region(region.IPC, granularity))
			awaitTrue(t, "the copier has said so", func() bool {
				s := r.Devices()[0]
				return s.PinnedBytes == tc.bytes && s.PinError == tc.why
			})
			copierOf(t, r).end(errEnded)
			awaitTrue(t, "an ended copier has locked nothing", func() bool {
				s := r.Devices()[0]
				return s.PinnedBytes == 0 && s.PinError == ""
			})
		})
	}
}

// A piece that lies in two registrations of the arena and in two allocations of the engine is three copies.
func TestAPieceCrossesRegistrationsAndAllocations(t *testing.T) {
	const border = 256 << 20 // where the copier's second registration begins
	r, e := newRigOf(t, border+1<<20, nil), startEngine(t, 0)
	m := r.open(e.region(region.IPC, granularity, granularity))
	for seed := range uint64(30) { // at first nothing is registered yet
		e.fill(0, granularity-2000, 4000, seed)
		clear(r.arena[border-3000 : border+3000])
		b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, granularity-700, border-1000, 2000)}}
		if err := m.Copy(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		r.hostWants(border-1000, 2000, granularity-700, seed)
		if r.arena[border-1001] != 0 || r.arena[border+1000] != 0 {
			t.Fatal("bytes beside the piece changed")
		}
		r.fillHost(border-1000, 2000, granularity-1500, seed+100)
		b = gpu.Batch{Pieces: []gpu.Piece{r.piece(0, granularity-1500, border-1000, 2000)}}
		if err := m.Copy(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		e.wants(0, granularity-1500, 2000, seed+100)
		e.wants(0, granularity-2000, 500, seed)
	}
}
