package cuda

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

const granularity = 2 << 20

// newestVersion is what a driver is without settings: the stand-in's newest, or the real one's own.
const newestVersion = "newest"

// versions of the driver that all basic tests run with: before batch copies, with them, in their newer form, the newest.
var versions = []string{"12040", "12080", "13000", newestVersion}

// versionEnv has the stand-in be of a version. For the newest nothing is set, so that these tests run on a real driver.
func versionEnv(version string) []string {
	if version == newestVersion {
		return nil
	}
	return []string{"FAKECUDA_VERSION=" + version}
}

func TestBytesGoBothWays(t *testing.T) {
	for _, version := range versions {
		for name, kind := range map[string]region.Kind{"legacy": region.IPC, "virtual": region.VMM} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				env := versionEnv(version)
				e, r := startEngine(t, 0, env...), newRig(t, nil, env...)
				files := e.region(kind, granularity, granularity, granularity)
				m := r.open(files)
				if got := m.RegionBytes()[0]; got != 3*granularity {
					t.Fatalf("%d bytes", got)
				}
				e.fill(0, 0, 3*granularity, 1)
				// Across the borders of allocations, at odd offsets, and in both directions side by side.
				var wait sync.WaitGroup
				wait.Go(func() {
					b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{
						r.piece(0, granularity-1000, 0, 2000), r.piece(0, 13, 4096, 77), r.piece(0, 3*granularity-1, 8192, 1),
					}}
					if err := m.Copy(t.Context(), &b); err != nil {
						t.Error(err)
					}
				})
				r.fillHost(1<<20, 300_000, 5_000_001, 2)
				wait.Go(func() {
					b := gpu.Batch{Direction: gpu.Load, Pieces: []gpu.Piece{r.piece(0, 5_000_001, 1<<20, 300_000)}}
					if err := m.Copy(t.Context(), &b); err != nil {
						t.Error(err)
					}
				})
				wait.Wait()
				r.hostWants(0, 2000, granularity-1000, 1)
				r.hostWants(4096, 77, 13, 1)
				r.hostWants(8192, 1, 3*granularity-1, 1)
				e.wants(0, 0, 5_000_001, 1)
				e.wants(0, 5_000_001, 300_000, 2)
				e.wants(0, 5_300_001, 3*granularity-5_300_001, 1)
			})
		}
	}
}

// Many runs at random, in many batches from several goroutines; nothing beside them changes.
func TestRandomRunsChangeNothingBesideThem(t *testing.T) {
	const runBytes, runs = 1000, 5000
	e, r := startEngine(t, 0), newRig(t, nil)
	m := r.open(e.region(region.IPC, 4<<20, 4<<20))
	e.fill(0, 0, 8<<20, 1)
	r.fillHost(0, runs*runBytes, 0, 2)
	order := rand.Perm(runs)
	var wait sync.WaitGroup
	for from := 0; from < runs; from += runs / 4 {
		wait.Go(func() {
			var b gpu.Batch
			for _, i := range order[from : from+runs/4] {
				at := int64(i) * runBytes
				// A gap of 24 bytes follows each run.
				b.Pieces = append(b.Pieces, r.piece(0, at+int64(i)*24, at, runBytes))
			}
			if err := m.Copy(t.Context(), &b); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	for i := range int64(runs) {
		if i%97 == 0 || i == runs-1 {
			at := i * (runBytes + 24)
			// What was copied is the pattern of the arena's offset, which is another one than that of the region.
			if got, _ := e.ask(&engineRequest{Op: "compare", Offset: at + runBytes, Bytes: 24, Seed: 1}); got.WrongAt >= 0 {
				t.Fatalf("a byte beside run %d changed", i)
			}
		}
	}
	clear(r.arena[:runs*runBytes])
	var b gpu.Batch
	b.Direction = gpu.Save
	for i := range int64(runs) {
		b.Pieces = append(b.Pieces, r.piece(0, i*(runBytes+24), i*runBytes, runBytes))
	}
	if err := m.Copy(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	r.hostWants(0, runs*runBytes, 0, 2)
}

func TestThousandsOfAllocationsAreOneRegion(t *testing.T) {
	const parts = 600 // more than two messages of descriptors
	sizes := make([]int64, parts)
	for i := range sizes {
		sizes[i] = granularity
	}
	e, r := startEngine(t, 0), newRig(t, nil)
	files := e.region(region.VMM, sizes...)
	before := openDescriptors(t)
	m := r.open(files)
	if after := openDescriptors(t); after > before+8 {
		t.Errorf("the daemon holds %d descriptors more", after-before)
	}
	e.fill(0, 0, 64, 3)
	e.fill(0, (parts-1)*granularity-32, 64, 3)
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{
		r.piece(0, 0, 0, 64), r.piece(0, (parts-1)*granularity-32, 64, 64),
	}}
	if err := m.Copy(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	r.hostWants(0, 64, 0, 3)
	r.hostWants(64, 64, (parts-1)*granularity-32, 3)
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func TestOneDriverServesEnginesOnProcessorsToo(t *testing.T) {
	r := newRig(t, nil)
	m := r.open([]*os.File{memfd.New(t, 1<<20)})
	r.fillHost(0, 100, 0, 7)
	if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 500, 0, 100)}}); err != nil {
		t.Fatal(err)
	}
	if len(r.Devices()) != 0 {
		t.Error("a copier was started for shared memory")
	}
}

func TestACopyWaitsForTheEnginesCall(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	m := r.open(e.region(region.IPC, granularity))
	var reached atomic.Uint64
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}, AfterCall: 3, Reached: reached.Load}
	ended := make(chan error, 1)
	go func() { ended <- m.Copy(t.Context(), &b) }()
	e.fill(0, 0, granularity, 5) // what the step before the call writes
	reached.Store(2)
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	reached.Store(3)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	r.hostWants(0, 4096, 0, 5)

	// A number that never comes costs the call, and touches nothing.
	clear(r.arena[:4096])
	ctx, cancel := context.WithCancel(t.Context())
	b = gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}, AfterCall: 4, Reached: reached.Load}
	go func() { ended <- m.Copy(ctx, &b) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if r.arena[0] != 0 || r.arena[4095] != 0 {
		t.Error("bytes were copied")
	}
}

func TestPiecesOutsideAreRefused(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	m := r.open(e.region(region.IPC, granularity))
	for name, p := range map[string]gpu.Piece{
		"another region":    r.piece(1, 0, 0, 1),
		"beyond the region": r.piece(0, granularity-10, 0, 11),
		"far beyond":        r.piece(0, 1<<60, 0, 1),
		"not of the arena":  {Host: make([]byte, 10)},
		"offset that wraps": {Offset: 1<<64 - 1, Host: r.arena[:2]},
	} {
		if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{p}}); !errors.Is(err, gpu.ErrBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 0, 0, 10)}}); err != nil {
		t.Errorf("a good one afterwards: %v", err)
	}
}

func TestNothingIsCopiedForEmptyPieces(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	m := r.open(e.region(region.IPC, granularity))
	if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 0, 0, 0)}}); err != nil {
		t.Error(err)
	}
	if err := m.Copy(t.Context(), &gpu.Batch{}); err != nil {
		t.Error(err)
	}
	r.fillHost(0, 100, 0, 7)
	if err := m.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{r.piece(0, 8, 8, 0), r.piece(0, 0, 0, 100)}}); err != nil {
		t.Error(err)
	}
	e.wants(0, 0, 100, 7)
}

func TestMemoryIsGivenBack(t *testing.T) {
	e, r := startEngine(t, 0), newRig(t, nil)
	files := e.region(region.IPC, granularity)
	before := openDescriptors(t)
	for range 20 {
		m, err := r.Open(files)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(m.Close(), m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.Devices()[0].Starts; n != 1 {
		t.Errorf("%d copiers were started", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, "all descriptors are closed", func() bool { return openDescriptors(t) <= before })
}

// awaitTrue waits until something is so.
func awaitTrue(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}
