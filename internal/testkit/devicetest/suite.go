package devicetest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/kvconn/kvconn/gpu"
)

// RegionBytes is what the rig of [Run] must have in each of its two regions, and in its host memory.
const RegionBytes = 2 << 20

// Rig is a device with an engine's memory in it, for one case of [Run].
type Rig struct {
	// Memory is of two regions.
	Memory gpu.Memory
	// Host is memory that copies may use.
	Host []byte
	// Write and Read are the engine's, of a region.
	Write func(region int, offset int64, data []byte)
	Read  func(region int, offset int64, data []byte)
	// Reach has the engine's stream come to a call. Reached is the [gpu.Batch.Reached] of batches.
	Reach   func(call uint64)
	Reached func() uint64
}

// Run runs what every driver of devices must do.
func Run(t *testing.T, newRig func(t *testing.T) *Rig) {
	for name, test := range map[string]func(*testing.T, *Rig){
		"bytes go both ways":            bothWays,
		"nothing changes beside pieces": besidePieces,
		"pieces outside are refused":    outside,
		"copies wait for their call":    waitForCall,
		"a wait is given up":            giveUp,
		"copies run side by side":       sideBySide,
	} {
		t.Run(name, func(t *testing.T) { test(t, newRig(t)) })
	}
}

// piece is n bytes of a region, and where they lie in the host's memory.
func (r *Rig) piece(region uint32, offset, at, n int) gpu.Piece {
	return gpu.Piece{Region: region, Offset: uint64(offset), Host: r.Host[at : at+n : at+n]}
}

// pattern is n bytes that tell offsets and seeds apart.
func pattern(seed, n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte((i + 1) * (2*seed + 31) >> 3)
	}
	return out
}

func same(t *testing.T, what string, got, want []byte) {
	t.Helper()
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: byte %d of %d is %d, want %d", what, i, len(want), got[i], want[i])
			return
		}
	}
}

// engineHas compares what the engine has.
func (r *Rig) engineHas(t *testing.T, what string, region int, offset int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	r.Read(region, offset, got)
	same(t, what, got, want)
}

func mustCopy(t *testing.T, r *Rig, d gpu.Direction, pieces ...gpu.Piece) {
	t.Helper()
	if err := r.Memory.Copy(t.Context(), &gpu.Batch{Direction: d, Pieces: pieces}); err != nil {
		t.Fatal(err)
	}
}

func bothWays(t *testing.T, r *Rig) {
	if sizes := r.Memory.RegionBytes(); len(sizes) != 2 || sizes[0] != RegionBytes || sizes[1] != RegionBytes {
		t.Fatalf("regions of %v bytes", sizes)
	}
	for region := range 2 {
		want := pattern(region, 70_001)
		r.Write(region, 13, want)
		mustCopy(t, r, gpu.Save, r.piece(uint32(region), 13, 4096, len(want)), r.piece(uint32(region), 0, 0, 0))
		same(t, "saved", r.Host[4096:], want)
		mustCopy(t, r, gpu.Load, r.piece(uint32(region), RegionBytes-len(want), 4096, len(want)))
		r.engineHas(t, "loaded", region, int64(RegionBytes-len(want)), want)
	}
	mustCopy(t, r, gpu.Load)
}

func besidePieces(t *testing.T, r *Rig) {
	const n, gap = 1000, 24
	all := pattern(1, 100*(n+gap))
	r.Write(1, 0, all)
	load := pattern(2, 100*n)
	copy(r.Host, load)
	var pieces []gpu.Piece
	for i := range 100 {
		k := i * 37 % 100 // not in order
		pieces = append(pieces, r.piece(1, k*(n+gap), k*n, n))
		copy(all[k*(n+gap):], load[k*n:(k+1)*n])
	}
	mustCopy(t, r, gpu.Load, pieces...)
	r.engineHas(t, "loaded", 1, 0, all)
}

func outside(t *testing.T, r *Rig) {
	for name, p := range map[string]gpu.Piece{
		"another region": r.piece(2, 0, 0, 1), "beyond": r.piece(1, RegionBytes-10, 0, 11),
		"that wraps": {Offset: 1<<64 - 1, Host: r.Host[:2]},
	} {
		if err := r.Memory.Copy(t.Context(), &gpu.Batch{Pieces: []gpu.Piece{p}}); !errors.Is(err, gpu.ErrBounds) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// start begins a save for a call.
func (r *Rig) start(ctx context.Context, call uint64) <-chan error {
	ended := make(chan error, 1)
	b := gpu.Batch{Direction: gpu.Save, Pieces: []gpu.Piece{r.piece(0, 0, 0, 4096)}, AfterCall: call, Reached: r.Reached}
	go func() { ended <- r.Memory.Copy(ctx, &b) }()
	return ended
}

func waitForCall(t *testing.T, r *Rig) {
	ended := r.start(t.Context(), 2)
	r.Reach(1)
	want := pattern(3, 4096)
	r.Write(0, 0, want)
	select {
	case err := <-ended:
		t.Fatalf("it did not wait: %v", err)
	default:
	}
	r.Reach(2)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	same(t, "saved", r.Host, want)
}

func giveUp(t *testing.T, r *Rig) {
	r.Write(0, 0, pattern(4, 4096))
	clear(r.Host[:4096])
	ctx, cancel := context.WithCancel(t.Context())
	ended := r.start(ctx, 1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	same(t, "untouched", r.Host, make([]byte, 4096))
}

func sideBySide(t *testing.T, r *Rig) {
	const n = 4096
	var wait sync.WaitGroup
	for i := range 32 {
		copy(r.Host[i*n:], pattern(i, n))
		wait.Go(func() {
			for _, d := range []gpu.Direction{gpu.Load, gpu.Save} {
				b := gpu.Batch{Direction: d, Pieces: []gpu.Piece{r.piece(uint32(i%2), i*n, i*n, n)}}
				if err := r.Memory.Copy(t.Context(), &b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	for i := range 32 {
		same(t, "loaded and saved", r.Host[i*n:], pattern(i, n))
		r.engineHas(t, "loaded", i%2, int64(i*n), pattern(i, n))
	}
}
