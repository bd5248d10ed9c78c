package worker

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/devicetest"
	"github.com/kvconn/kvconn/store/host"
)

// device is one in Go: what real ones do is in their drivers' tests.
type device struct{ devicetest.Driver }

// piece is where a block's bytes of a layer lie.
func devicePiece(vram []byte, slot, layer int) []byte {
	at := 100 + layer*blocks*pieceBytes + slot*pieceBytes
	return vram[at : at+pieceBytes]
}

// fill is what a step writes to a block.
func fillDevice(vram []byte, slot, n int) {
	for layer := range layers {
		copy(devicePiece(vram, slot, layer), content(n, layer))
	}
}

func (d *device) holds(slot, n int) (held bool) {
	d.Look(func(vram []byte) {
		held = true
		for layer := range layers {
			held = held && slices.Equal(devicePiece(vram, slot, layer), content(n, layer))
		}
	})
	return held
}

// fail has the device fail for good.
func (d *device) fail() { d.Fail(fmt.Errorf("error 700: %w", gpu.ErrLost)) }

// A save has what the step before its call writes, however late the device comes to
// it, and a load writes nothing that the step before its call may still read.
func TestCopiesOfADeviceWaitForTheEnginesCall(t *testing.T) {
	d := new(device)
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
		d.Reach(1, func(vram []byte) { fillDevice(vram, 0, 7); fillDevice(vram, 1, 8) })
		if r := <-saved; r.Taken != 2 {
			t.Fatalf("saved %+v, want both", r)
		}
		settle(t, w) // written
		if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 4, 5)))); err != nil {
			t.Fatal(err)
		}
		d.Reach(2, func(vram []byte) { fillDevice(vram, 4, 9); fillDevice(vram, 5, 9) })
		if l := poll(t, w, 1); len(l[0].FailedBlocks) > 0 || !d.holds(4, 7) || !d.holds(5, 8) {
			t.Errorf("%+v, or the blocks are not what was saved", l)
		}
		if want := []devicetest.Copy{{Direction: gpu.Save, AfterCall: 1}, {Direction: gpu.Load, AfterCall: 2}}; !slices.Equal(slices.Compact(d.Copies()), want) {
			t.Errorf("copies %v, want %v", d.Copies(), want)
		}
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
			s, d := openStore(t), new(device)
			other, m := newWorker(t, s, nil), newEngineMemory(t)
			register(t, other, m)
			m.fill(0, 7)
			mustSave(t, other, transfer(0, 0))
			w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Driver, o.LoadTimeout = d, time.Hour })
			register(t, w, newEngineMemory(t))
			if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 3)))); err != nil {
				t.Fatal(err)
			}
			for len(d.Copies()) == 0 {
				time.Sleep(time.Millisecond)
			}
			if err := takeBack(w); err != nil {
				t.Error(err)
			}
			if d.holds(3, 7) {
				t.Error("the block was written")
			}
			// Steps would count as slow copies, and what a slow tier has is not offered.
			if took := w.Stats().CopySeconds; took != 0 {
				t.Errorf("%g s of waiting for the device are counted as copying", took)
			}
		})
	}
}

// An engine that dies in the middle of a step never comes to its next call.
func TestCallsThatADeviceNeverComesToEndAtTheirDeadline(t *testing.T) {
	d := new(device)
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
	d := new(device)
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
	d.Fail(nil)
	register(t, w, newEngineMemory(t))
	if w.BlockBytes() == nil {
		t.Error("memory that works is taken for gone")
	}
}

// A call that is refused is one of the engine's all the same: if it were not counted, the calls after it would be copied
// for too early.
func TestMovesThatAreRefusedAreCounted(t *testing.T) {
	d := new(device)
	w, _, _ := newKeyedWorker(t, func(o *Options, _ *host.AccountOptions) { o.Driver = d })
	anyParent := part(1, 0)
	anyParent.Parent, anyParent.AnyParent = connector.Proof{}, true
	if err := w.Put(t.Context(), keyedMove("refused", anyParent)); err == nil {
		t.Error("a save without a parent is taken")
	}
	d.Reach(2, func(vram []byte) { fillDevice(vram, 0, 7) })
	mustPut(t, w, keyedMove("good", part(1, 0)))
	if want := []devicetest.Copy{{Direction: gpu.Save, AfterCall: 2}}; !slices.Equal(slices.Compact(d.Copies()), want) {
		t.Errorf("copies %v, want %v", d.Copies(), want)
	}
}
