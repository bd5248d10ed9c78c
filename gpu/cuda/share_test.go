package cuda

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/gpu/region"
	"github.com/kvconn/kvconn/gpu/ring"
	"github.com/kvconn/kvconn/internal/testkit/devicetest"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
)

// The device in Go that other packages test with does what this driver does.
func TestTheDriverDoesWhatTheOneOfTestsDoes(t *testing.T) {
	devicetest.Run(t, func(t *testing.T) *devicetest.Rig {
		r, e := newRig(t, nil), startEngine(t, 0)
		files := append(e.region(region.IPC, devicetest.RegionBytes), e.region(region.IPC, devicetest.RegionBytes)...)
		var reached atomic.Uint64
		return &devicetest.Rig{
			Memory: r.open(files), Host: r.arena[:devicetest.RegionBytes],
			Write: e.write, Read: e.read, Reach: reached.Store, Reached: reached.Load,
		}
	})
}

// write has the engine write data to a region.
func (e *testEngine) write(region int, offset int64, data []byte) {
	e.move("write", region, offset, data)
}

// read reads what a region has into data.
func (e *testEngine) read(region int, offset int64, data []byte) {
	e.move("read", region, offset, data)
}

// move passes the data through a file: it may be longer than a message.
func (e *testEngine) move(op string, region int, offset int64, data []byte) {
	e.t.Helper()
	f := memfd.New(e.t, int64(len(data)))
	if _, err := f.WriteAt(data, 0); err != nil {
		e.t.Fatal(err)
	}
	e.ask(&engineRequest{Op: op, Region: region, Offset: offset, Bytes: int64(len(data))}, f)
	if _, err := f.ReadAt(data, 0); err != nil {
		e.t.Fatal(err)
	}
}

// Engines share a GPU's copier, its ring and its lanes. One whose calls never come takes nothing of them, and one that
// opens memory for as long as it may leaves copies alone.
func TestAStuckEngineDelaysNoOther(t *testing.T) {
	stuck, fine, r := startEngine(t, 0), startEngine(t, 0), newRig(t, nil)
	first, second := r.open(stuck.region(region.IPC, granularity)), r.open(fine.region(region.IPC, granularity))
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	// More copies than the ring has slots, in both directions.
	var awaited atomic.Int64
	const copies = 4 * ring.Slots
	for i := range copies {
		wait.Go(func() {
			var once sync.Once
			b := gpu.Batch{
				Direction: gpu.Direction(i % 2), Pieces: []gpu.Piece{r.piece(0, 0, 4<<20, 4096)}, AfterCall: 1,
				Reached: func() uint64 { once.Do(func() { awaited.Add(1) }); return 0 },
			}
			if err := first.Copy(ctx, &b); !errors.Is(err, context.Canceled) {
				t.Errorf("a copy for a call that never came: %v", err)
			}
		})
	}
	awaitTrue(t, "all of the stuck engine's copies wait", func() bool { return awaited.Load() == copies })
	if free := len(copierOf(t, r).free); free != ring.Slots {
		t.Errorf("%d slots are free, want all %d", free, ring.Slots)
	}
	// Its next registration waits for exports that do not come.
	_, theirs := pair(t)
	files := stuck.region(region.VMM, granularity)
	var opened atomic.Bool
	wait.Go(func() {
		if _, err := r.Open([]*os.File{files[0], theirs}); err == nil || errors.Is(err, gpu.ErrLost) {
			t.Errorf("open without exports: %v", err)
		}
		opened.Store(true)
	})
	awaitTrue(t, "the registration is under way", func() bool { return copierOf(t, r).asks() })
	if err := exercise(t, r, fine, second); err != nil {
		t.Fatal(err)
	}
	if opened.Load() { // the copier waits for exports for some seconds
		t.Skip("the machine is too slow to show that copies do not wait for the registration")
	}
}
