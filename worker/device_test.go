package worker

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
)

// device is a driver whose memory is no memory of this process and whose engine computes
// after its calls return, as on a GPU: what real ones do is in their drivers' tests.
type device struct {
	mu      sync.Mutex
	changed sync.Cond
	vram    []byte
	reached uint64 // the engine's last call that its compute stream has come to
	failed  bool
	copies  []string
}

func newDevice() *device {
	d := new(device)
	d.changed.L = &d.mu
	return d
}

// Open takes the size of the memory from what the descriptor says.
func (d *device) Open(files []*os.File) (gpu.Memory, error) {
	info, err := files[0].Stat()
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.vram, d.reached, d.copies = make([]byte, info.Size()), 0, nil
	return deviceMemory{d}, nil
}

func (*device) PinHost(*os.File, []byte) (func() error, error) {
	return func() error { return nil }, nil
}

// reach has the engine's stream come to its call of that number, after what step does.
func (d *device) reach(call uint64, step func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	step()
	d.reached = call
	d.changed.Broadcast()
}

// fail has the device fail for good.
func (d *device) fail() { d.reach(0, func() { d.failed = true }) }

func (d *device) piece(slot, layer int) []byte {
	at := 100 + layer*blocks*pieceBytes + slot*pieceBytes
	return d.vram[at : at+pieceBytes]
}

// fill is what a step writes to a block; d.mu is held.
func (d *device) fill(slot, n int) {
	for layer := range layers {
		copy(d.piece(slot, layer), content(n, layer))
	}
}

func (d *device) holds(slot, n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for layer := range layers {
		if !slices.Equal(d.piece(slot, layer), content(n, layer)) {
			return false
		}
	}
	return true
}

type deviceMemory struct{ d *device }

func (deviceMemory) Shape() gpu.Shape       { return gpu.Shape{Calls: 1, BatchBytes: 64 << 20} }
func (deviceMemory) Close() error           { return nil }
func (m deviceMemory) RegionBytes() []int64 { return []int64{int64(len(m.d.vram))} }

func (m deviceMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	d := m.d
	d.mu.Lock()
	defer d.mu.Unlock()
	defer context.AfterFunc(ctx, func() { d.reach(0, func() {}) })()
	d.copies = append(d.copies, fmt.Sprint(b.Direction, " after ", b.AfterCall))
	for d.reached < b.AfterCall && !d.failed {
		if err := ctx.Err(); err != nil {
			return err
		}
		d.changed.Wait()
	}
	if d.failed {
		return fmt.Errorf("error 700: %w", gpu.ErrLost)
	}
	for _, p := range gpu.Merge(b.Pieces) {
		vram := d.vram[p.Offset:][:len(p.Host)]
		if b.Direction == gpu.Load {
			copy(vram, p.Host)
		} else {
			copy(p.Host, vram)
		}
	}
	return nil
}

// A save has what the step before its call writes, however late the device comes to
// it, and a load writes nothing that the step before its call may still read.
func TestCopiesOfADeviceWaitForTheEnginesCall(t *testing.T) {
	d := newDevice()
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Driver = d })
	for range 2 { // the calls are counted again from 1 for each registration
		register(t, w, newEngineMemory(t))
		saved := make(chan connector.SaveResult)
		go func() {
			r, err := w.Save(t.Context(), saves(transfer(0, 0, 1)))
			if err != nil {
				t.Error(err)
			}
			saved <- r
		}()
		d.reach(1, func() { d.fill(0, 7); d.fill(1, 8) })
		if r := <-saved; r.Taken != 2 {
			t.Fatalf("saved %+v, want both", r)
		}
		settle(t, w) // written
		if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4, 5)))); err != nil {
			t.Fatal(err)
		}
		d.reach(2, func() { d.fill(4, 9); d.fill(5, 9) })
		if l := poll(t, w, 1); len(l[0].FailedBlocks) > 0 || !d.holds(4, 7) || !d.holds(5, 8) {
			t.Errorf("%+v, or the blocks are not what was saved", l)
		}
		d.mu.Lock()
		if want := []string{"1 after 1", "0 after 2"}; !slices.Equal(slices.Compact(d.copies), want) {
			t.Errorf("copies %q, want %q", d.copies, want)
		}
		d.mu.Unlock()
		settle(t, w)
	}
}

// A load that waits for the device to come to its call is ended at once where it is not wanted any more: the device may
// be in a long step.
func TestLoadsOfADeviceAreTakenBackAtOnce(t *testing.T) {
	for name, takeBack := range map[string]func(*Worker) error{
		"cancel":     func(w *Worker) error { return w.Cancel(t.Context(), "r") },
		"unregister": func(w *Worker) error { return w.Unregister(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			s, d := openStore(t), newDevice()
			other, m := newWorker(t, s, nil), newEngineMemory(t)
			register(t, other, m)
			m.fill(0, 7)
			mustSave(t, other, transfer(0, 0))
			w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Driver, o.LoadTimeout = d, time.Hour })
			register(t, w, newEngineMemory(t))
			if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 3)))); err != nil {
				t.Fatal(err)
			}
			for waits := false; !waits; time.Sleep(time.Millisecond) {
				d.mu.Lock()
				waits = len(d.copies) > 0
				d.mu.Unlock()
			}
			if err := takeBack(w); err != nil {
				t.Error(err)
			}
			if d.holds(3, 7) {
				t.Error("the block was written")
			}
		})
	}
}

// An engine that dies in the middle of a step never comes to its next call.
func TestCallsThatADeviceNeverComesToEndAtTheirDeadline(t *testing.T) {
	d := newDevice()
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Driver, o.LoadTimeout = d, 20*time.Millisecond })
	register(t, w, newEngineMemory(t))
	if r, err := w.Save(t.Context(), saves(transfer(0, 0, 1))); err != nil || r.Dropped != 2 {
		t.Errorf("Save = %+v, %v; want both blocks dropped", r, err)
	}
	if n := pinned(w); n != 0 {
		t.Errorf("%d bytes are held by saves that were dropped", n)
	}
}

// A device that fails for good is told of once, and costs the ranks on it their cache and
// nobody anything else, until the rank registers memory that works.
func TestFailedDeviceCostsItsRankTheCacheAndIsToldOnce(t *testing.T) {
	s := openStore(t)
	d := newDevice()
	var lost atomic.Int32
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) {
		o.Driver, o.Lost = d, func(bool) { lost.Add(1) }
	})
	other, m := newWorker(t, s, nil), newEngineMemory(t)
	register(t, other, m)
	m.fill(0, 7)
	mustSave(t, other, transfer(0, 0))
	register(t, w, newEngineMemory(t))
	d.fail()
	for i := range 3 {
		if _, err := w.Load(t.Context(), loads(loadOf(fmt.Sprint(i), transfer(0, 3)))); err != nil {
			t.Fatal(err)
		}
		if r, err := w.Save(t.Context(), saves(transfer(5, 4))); err != nil || r.Dropped != 1 {
			t.Errorf("Save = %+v, %v; want the block dropped", r, err)
		}
	}
	for _, l := range poll(t, w, 3) {
		if len(l.FailedBlocks) != 1 {
			t.Errorf("%+v on a device that has failed", l)
		}
	}
	if lost.Load() != 1 || w.BlockBytes() != nil {
		t.Errorf("told %d times, want once; blocks of %v bytes", lost.Load(), w.BlockBytes())
	}
	if _, err := other.Load(t.Context(), loads(loadOf("r", transfer(0, 3)))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, other, 1); len(l[0].FailedBlocks) > 0 || !m.holds(3, 7) {
		t.Errorf("%+v on another device", l)
	}
	d.reach(0, func() { d.failed = false })
	register(t, w, newEngineMemory(t))
	if w.BlockBytes() == nil {
		t.Error("memory that works is taken for gone")
	}
}

// A call that is refused is one of the engine's all the same: if it were not counted, the calls after it would be copied
// for too early.
func TestMovesThatAreRefusedAreCounted(t *testing.T) {
	d := newDevice()
	w, _, _ := newKeyedWorker(t, func(o *Options, _ *host.AccountOptions) { o.Driver = d })
	anyParent := part(1, 0)
	anyParent.Parent, anyParent.AnyParent = connector.Proof{}, true
	if err := w.Put(t.Context(), keyedMove("refused", anyParent)); err == nil {
		t.Error("a save without a parent is taken")
	}
	d.reach(2, func() { d.fill(0, 7) })
	mustPut(t, w, keyedMove("good", part(1, 0)))
	d.mu.Lock()
	defer d.mu.Unlock()
	if want := []string{"1 after 2"}; !slices.Equal(d.copies, want) {
		t.Errorf("copies %q, want %q", d.copies, want)
	}
}
