package worker

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store/host"
)

// countMemory notes the longest batch and the bytes of all.
type countMemory struct {
	gpu.Memory
	longest, bytes int
}

func (m *countMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	m.longest = max(m.longest, len(b.Pieces))
	for i := range b.Pieces {
		m.bytes += len(b.Pieces[i].Host)
	}
	return m.Memory.Copy(ctx, b)
}

func TestBatchesOfManySmallPiecesAreShort(t *testing.T) {
	w := newWorker(t, &slowStore{}, nil)
	register(t, w, newEngineMemory(t))
	mem := w.memory()
	counted := &countMemory{Memory: mem.engine}
	mem.engine = counted
	const pieces = 600 // of 10 bytes: blocks of as many bytes as the memory's own
	mem.groups[0].layout.Runs = []connector.Run{{Layers: pieces, LayerStride: 10, BlockStride: layers * pieceBytes, Bytes: layers * pieceBytes / pieces}}
	var copies []blockCopy
	for i := range 100 {
		copies = append(copies, blockCopy{group: &mem.groups[0], slot: uint32(i % blocks), buf: make([]byte, layers*pieceBytes)})
	}
	if _, err := mem.copy(t.Context(), gpu.Save, 1, copies); err != nil {
		t.Fatal(err)
	}
	if counted.bytes != 100*layers*pieceBytes || counted.longest >= batchPieces+pieces {
		t.Errorf("%d bytes in batches of up to %d pieces", counted.bytes, counted.longest)
	}
}

// However many loads are under way, no more copies run at once than the driver wants.
func TestLoadsShareTheCopiesOfTheirRank(t *testing.T) {
	s := openStore(t)
	m := newEngineMemory(t)
	saver := newWorker(t, s, nil)
	register(t, saver, m)
	mustSave(t, saver, transfer(0, 0, 1, 2, 3, 4, 5, 6, 7))
	var running, most atomic.Int32
	driver := &shapedDriver{shape: gpu.Shape{Calls: 2, BatchBytes: 1}}
	driver.before = func(gpu.Direction) {
		for n := running.Add(1); ; {
			if was := most.Load(); n <= was || most.CompareAndSwap(was, n) {
				break
			}
		}
		time.Sleep(time.Millisecond)
		running.Add(-1)
	}
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Driver = driver })
	register(t, w, m)
	const n = 8
	for i := range n {
		if _, err := w.Load(t.Context(), loads(loadOf(fmt.Sprint(i), transfer(0, 0, 1, 2, 3, 4, 5, 6, 7)))); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range poll(t, w, n) {
		if len(l.FailedBlocks) != 0 {
			t.Errorf("%+v", l)
		}
	}
	if got := most.Load(); got > 2 {
		t.Errorf("%d copies at once, want at most 2", got)
	}
	most.Store(0)
	mustSave(t, w, transfer(20, 0, 1, 2, 3, 4, 5, 6, 7))
	if got := most.Load(); got > 2 {
		t.Errorf("%d copies of a save at once, want at most 2", got)
	}
}

// One core reaches half of the memory's bandwidth: as many copies run side by side as the
// memory wants, of loads and of saves.
func TestCopiesRunSideBySide(t *testing.T) {
	m := newEngineMemory(t)
	met := make(chan struct{}) // a copy and another meet here
	meet := func() bool {
		select {
		case met <- struct{}{}:
		case <-met:
		case <-time.After(20 * time.Second): // alone
			return false
		}
		return true
	}
	var alone atomic.Int32
	driver := &shapedDriver{shape: gpu.Shape{Calls: 2, BatchBytes: 1}}
	driver.before = func(gpu.Direction) {
		if !meet() {
			alone.Add(1)
		}
	}
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Driver = driver })
	register(t, w, m)
	mustSave(t, w, transfer(0, 0, 1))
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 2, 3)))); err != nil {
		t.Fatal(err)
	}
	poll(t, w, 1)
	if n := alone.Load(); n > 0 {
		t.Errorf("%d copies had no other beside them", n)
	}
}

// shapedDriver is a hookDriver whose memory has a shape of its own.
type shapedDriver struct {
	hookDriver
	shape gpu.Shape
}

func (d *shapedDriver) Open(files []*os.File) (gpu.Memory, error) {
	m, err := d.hookDriver.Open(files)
	return shapedMemory{m, d.shape}, err
}

type shapedMemory struct {
	gpu.Memory
	shape gpu.Shape
}

func (m shapedMemory) Shape() gpu.Shape { return m.shape }
