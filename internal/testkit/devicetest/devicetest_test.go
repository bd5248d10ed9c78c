package devicetest

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
	"github.com/kvconn/kvconn/internal/testkit/wait"
)

func newTestRig(t *testing.T) (*Driver, *Rig) {
	t.Helper()
	d := new(Driver)
	m, err := d.Open([]*os.File{memfd.New(t, RegionBytes), memfd.New(t, RegionBytes)})
	if err != nil {
		t.Fatal(err)
	}
	var reached atomic.Uint64
	at := func(region int, offset int64) int64 { return int64(region)*RegionBytes + offset }
	return d, &Rig{
		Memory: m, Host: make([]byte, RegionBytes),
		Write: func(region int, offset int64, data []byte) {
			d.Look(func(vram []byte) { copy(vram[at(region, offset):], data) })
		},
		Read: func(region int, offset int64, data []byte) {
			d.Look(func(vram []byte) { copy(data, vram[at(region, offset):]) })
		},
		Reach: func(call uint64) {
			reached.Store(call)
			d.Reach(call, nil)
		},
		Reached: reached.Load,
	}
}

func TestTheDriverPassesWhatRealOnesMust(t *testing.T) {
	Run(t, func(t *testing.T) *Rig { _, r := newTestRig(t); return r })
}

func TestWhatIsInjectedHappens(t *testing.T) {
	d, r := newTestRig(t)
	d.Hold()
	ended := r.start(t.Context(), 0)
	wait.For(t, "the copy", func() bool { return len(d.Copies()) > 0 })
	select {
	case err := <-ended:
		t.Fatalf("it was not held: %v", err)
	default:
	}
	d.Release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	ended = r.start(t.Context(), 1) // it waits, and fails
	d.Fail(gpu.ErrLost)
	if err := <-ended; !errors.Is(err, gpu.ErrLost) {
		t.Errorf("%v", err)
	}
	d.Fail(nil)
	mustCopy(t, r, gpu.Load, r.piece(0, 0, 0, 10))
	d.FailOpen(gpu.ErrAgain)
	if _, err := d.Open([]*os.File{memfd.New(t, 1)}); !errors.Is(err, gpu.ErrAgain) {
		t.Errorf("%v", err)
	}
	if got := len(d.Copies()); got != 3 {
		t.Errorf("%d copies, want 3", got)
	}
}
