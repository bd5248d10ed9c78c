package worker

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// newLaterWorker is a worker for a device, with what the engine revokes by.
func newLaterWorker(t *testing.T, change func(*Options, *host.AccountOptions)) (*Worker, *device, *fence.Ledger) {
	t.Helper()
	d, l := new(device), new(fence.Ledger)
	w := newWorker(t, openStore(t), func(o *Options, a *host.AccountOptions) {
		o.Driver = d
		if change != nil {
			change(o, a)
		}
	})
	l.Attach(register(t, w, newEngineMemory(t)))
	return w, d, l
}

func mustSaveLater(t *testing.T, w *Worker, l *fence.Ledger, id string, ts ...connector.Transfer) {
	t.Helper()
	later, err := w.SaveLater(context.WithValue(t.Context(), noteKey{}, "note"), &connector.SaveRequest{ID: id, Metadata: saves(ts...), Revoked: l.Count()})
	if !later || err != nil {
		t.Fatalf("SaveLater = %t, %v", later, err)
	}
}

// wantStored waits for the ends of saves and compares them.
func wantStored(t *testing.T, w *Worker, want ...connector.StoredPut) {
	t.Helper()
	got := stored(t, w, len(want))
	slices.SortFunc(got, func(a, b connector.StoredPut) int { return strings.Compare(a.ID, b.ID) })
	if !slices.Equal(got, want) {
		t.Fatalf("%+v, want %+v", got, want)
	}
}

func savedAs(id string, taken, dropped, present int) connector.StoredPut {
	return connector.StoredPut{ID: id, SaveResult: connector.SaveResult{Taken: taken, Dropped: dropped, Present: present}}
}

// has reports whether block n of a chain is stored or in the host tier.
func has(w *Worker, n int) bool {
	s := stretch{group: w.memory().group(0), blocks: []connector.PlanBlock{{Key: connector.Key{byte(n)}}}}
	return w.present(&s)[0]
}

// The forward pass is only queued when the engine saves: the call returns, and its end is reported once the device has come to it.
func TestSavesOfADeviceAreReportedOnceTheyAreCopied(t *testing.T) {
	w, d, l := newLaterWorker(t, nil)
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1))
	mustSaveLater(t, w, l, "b", transfer(2, 2))
	mustSaveLater(t, w, l, "c")
	wantStored(t, w, savedAs("c", 0, 0, 0)) // there is nothing to wait for
	if p, err := w.Poll(t.Context()); err != nil || len(p.Stored) > 0 {
		t.Fatalf("reported before the device has come to the calls: %+v, %v", p, err)
	}
	d.Reach(1, func(vram []byte) { fillDevice(vram, 0, 7); fillDevice(vram, 1, 8) })
	wantStored(t, w, savedAs("a", 2, 0, 0))
	d.Reach(3, func(vram []byte) { fillDevice(vram, 0, 99); fillDevice(vram, 1, 99); fillDevice(vram, 2, 9) })
	wantStored(t, w, savedAs("b", 1, 0, 0))
	settle(t, w)
	mustSaveLater(t, w, l, "again", transfer(0, 5, 6)) // call 4, and there is nothing to copy
	wantStored(t, w, savedAs("again", 0, 0, 2))
	if _, err := w.Load(t.Context(), loads(loadOf("r", transfer(0, 10, 11, 12)))); err != nil {
		t.Fatal(err)
	}
	d.Reach(5, nil)
	if got := poll(t, w, 1); len(got[0].FailedBlocks) > 0 || !d.holds(10, 7) || !d.holds(11, 8) || !d.holds(12, 9) {
		t.Errorf("%+v, or the blocks are not what was saved", got)
	}
}

func TestMemoryThatIsNoDevicesIsSavedAtOnce(t *testing.T) {
	w := newWorker(t, openStore(t), nil)
	register(t, w, newEngineMemory(t))
	m := &connector.SaveRequest{ID: "a", Metadata: saves(transfer(0, 0))}
	if later, err := w.SaveLater(t.Context(), m); later || err != nil || w.memory().calls.Load() != 0 {
		t.Errorf("SaveLater = %t, %v", later, err)
	}
	if err := w.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if later, err := w.SaveLater(t.Context(), m); later || err != nil {
		t.Errorf("SaveLater = %t, %v without memory", later, err)
	}
}

// Blocks that are taken back before the device comes to the call are not even copied.
func TestRevokedBlocksAreNotCopied(t *testing.T) {
	w, d, l := newLaterWorker(t, nil)
	l.Revoke([]uint32{4}) // before the save: it holds what is computed after
	mustSaveLater(t, w, l, "first", transfer(30, 9))
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1, 2), transfer(10, 4))
	l.Revoke([]uint32{1, 2})
	mustSaveLater(t, w, l, "b", transfer(20, 2))
	d.Reach(3, func(vram []byte) {
		fillDevice(vram, 0, 7)
		fillDevice(vram, 1, 8)
		fillDevice(vram, 2, 9)
		fillDevice(vram, 4, 5)
	})
	wantStored(t, w, savedAs("a", 2, 2, 0), savedAs("b", 1, 0, 0), savedAs("first", 1, 0, 0))
	settle(t, w)
	for n, want := range map[int]bool{1: true, 2: false, 3: false, 11: true, 21: true, 31: true} {
		if has(w, n) != want {
			t.Errorf("block %d is stored: %t", n, !want)
		}
	}
	if n := w.Stats().DroppedBlocks; n != 2 {
		t.Errorf("%d blocks counted as dropped, want 2", n)
	}
}

// afterDriver has something happen after each copy and before anybody knows of its end.
type afterDriver struct {
	gpu.Driver
	after func()
}

func (d *afterDriver) Open(files []*os.File) (gpu.Memory, error) {
	m, err := d.Driver.Open(files)
	return &afterMemory{m, d.after}, err
}

type afterMemory struct {
	gpu.Memory
	after func()
}

func (m *afterMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	defer m.after()
	return m.Memory.Copy(ctx, b)
}

// The bytes may be right, but nobody can know.
func TestBlocksRevokedDuringTheirCopyAreDropped(t *testing.T) {
	var l *fence.Ledger
	w, d, ledger := newLaterWorker(t, func(o *Options, _ *host.AccountOptions) {
		o.Driver = &afterDriver{o.Driver, func() { l.Revoke([]uint32{1}) }}
	})
	l = ledger
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1, 2))
	d.Reach(1, nil)
	wantStored(t, w, savedAs("a", 1, 2, 0))
	settle(t, w)
	if !has(w, 1) || has(w, 2) || has(w, 3) {
		t.Error("other blocks are stored than the one before the revoked one")
	}
	if n := pinned(w); n != 0 {
		t.Errorf("%d bytes are held by saves that were dropped", n)
	}
}

// An engine that gives a call up in the middle of a long step gets its memory back at once: nothing is being copied.
func TestMemoryIsTakenBackBeforeTheDeviceComesToACall(t *testing.T) {
	d, l := new(device), new(fence.Ledger)
	w := newWorker(t, openStore(t), func(o *Options, _ *host.AccountOptions) { o.Driver = d })
	page := register(t, w, newEngineMemory(t))
	l.Attach(page)
	mustSaveLater(t, w, l, "a", transfer(0, 0))
	wait.For(t, "the save waits for the device", func() bool {
		return len(d.Copies()) > 0
	})
	page.Fence()
	if !page.Idle() {
		t.Error("a wait for the device counts as a copy")
	}
	d.Reach(1, func(vram []byte) { fillDevice(vram, 0, 99) })
	wantStored(t, w, savedAs("a", 0, 1, 0))
	if !page.Idle() {
		t.Error("a copy stays counted in")
	}
}

func TestSavesOfADeviceThatIsGivenBackAreNotReported(t *testing.T) {
	w, d, l := newLaterWorker(t, nil)
	mustSaveLater(t, w, l, "a", transfer(0, 0))
	mustSaveLater(t, w, l, "b", transfer(1, 1))
	if err := w.Unregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.Reach(2, nil)
	settle(t, w)
	if p, err := w.Poll(t.Context()); err != nil || len(p.Stored) > 0 {
		t.Errorf("reported: %+v, %v", p, err)
	}
	register(t, w, newEngineMemory(t))
	if has(w, 1) || has(w, 2) {
		t.Error("a block of memory that was given back is stored")
	}
}

func TestSavesThatADeviceNeverComesToEndAtTheirDeadline(t *testing.T) {
	w, _, l := newLaterWorker(t, func(o *Options, _ *host.AccountOptions) { o.LoadTimeout = 20 * time.Millisecond })
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1))
	mustSaveLater(t, w, l, "b", transfer(2, 2))
	wantStored(t, w, savedAs("a", 0, 2, 0), savedAs("b", 0, 1, 0))
	if n := pinned(w); n != 0 {
		t.Errorf("%d bytes are held by saves that were dropped", n)
	}
}

// An engine that does not poll is refused, and what it is refused counts as a call.
func TestSavesThatAreNotPolledAreBounded(t *testing.T) {
	w, d, l := newLaterWorker(t, nil)
	d.Reach(maxPuts+2, nil)
	for i := range maxPuts {
		mustSaveLater(t, w, l, fmt.Sprint(i))
	}
	for range 2 {
		_, err := w.SaveLater(t.Context(), &connector.SaveRequest{ID: "more", Metadata: saves()})
		if err == nil {
			t.Fatal("one more save is noted")
		}
	}
	if n := w.memory().calls.Load(); n != maxPuts+2 {
		t.Errorf("%d calls, want %d", n, maxPuts+2)
	}
	stored(t, w, maxPuts)
	mustSaveLater(t, w, l, "now")
}

// Where there is no memory blocks are dropped: the engine waits for its own.
func TestSavesOfADeviceDoNotWaitForMemory(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	d, l := new(device), new(fence.Ledger)
	w := newWorker(t, slow, func(o *Options, a *host.AccountOptions) { o.Driver, a.SaveBytes = d, 3*4096*2 })
	l.Attach(register(t, w, newEngineMemory(t)))
	d.Reach(1, nil)
	mustSaveLater(t, w, l, "a", transfer(0, 0, 1, 2, 3, 4, 5, 6, 7))
	got := stored(t, w, 1)[0]
	if got.Taken == 0 || got.Dropped == 0 || got.Taken+got.Dropped != 8 {
		t.Errorf("%+v, want some taken and the rest dropped", got)
	}
	close(slow.release)
}

// tornDevice is memory that is copied and overwritten bit by bit at the same time, as by a device.
type tornDevice struct {
	mu   sync.Mutex
	vram []byte
}

const tornBytes = 100

// each calls f for small parts of [from, to), each at another moment.
func (d *tornDevice) each(from, n int, f func(at, n int)) {
	for at := from; at < from+n; at += tornBytes {
		d.mu.Lock()
		f(at, min(tornBytes, from+n-at))
		d.mu.Unlock()
		runtime.Gosched()
	}
}

func (d *tornDevice) Open(files []*os.File) (gpu.Memory, error) {
	info, err := files[0].Stat()
	if err != nil {
		return nil, err
	}
	d.vram = make([]byte, info.Size())
	return tornMemory{d}, nil
}

func (*tornDevice) PinHost(*os.File, []byte) (func() error, error) {
	return func() error { return nil }, nil
}

// fill writes a block whose bytes all say version.
func (d *tornDevice) fill(slot int, version uint64) {
	for layer := range layers {
		d.each(100+layer*blocks*pieceBytes+slot*pieceBytes, pieceBytes, func(at, n int) {
			for i := range n / 4 {
				binary.LittleEndian.PutUint32(d.vram[at+4*i:], uint32(version))
			}
		})
	}
}

type tornMemory struct{ d *tornDevice }

func (tornMemory) Shape() gpu.Shape {
	return gpu.Shape{Calls: 2, BatchBytes: 2 * layers * pieceBytes, Later: true}
}
func (tornMemory) Close() error           { return nil }
func (m tornMemory) RegionBytes() []int64 { return []int64{int64(len(m.d.vram))} }

func (m tornMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	for b.Reached() < b.AfterCall {
		if err := ctx.Err(); err != nil {
			return err
		}
		runtime.Gosched()
	}
	for _, p := range b.Pieces {
		m.d.each(int(p.Offset), len(p.Host), func(at, n int) {
			host := p.Host[at-int(p.Offset):][:n]
			if b.Direction == gpu.Load {
				copy(m.d.vram[at:], host)
			} else {
				copy(host, m.d.vram[at:])
			}
		})
	}
	return nil
}

// laterEngine computes blocks, saves them, and takes them back at any moment.
type laterEngine struct {
	t       *testing.T
	w       *Worker
	d       *tornDevice
	ledger  fence.Ledger
	page    *fence.Page
	random  *rand.Rand
	version uint64
	calls   uint64
	// using is the save that a block waits for, "" if it is free; saves is the number of those under way.
	using [blocks]string
	saves int
}

// step computes some blocks that are free, saves them and queues what the device is to do: its stream comes to the call a
// little later.
func (e *laterEngine) step(stream chan<- func()) {
	var ts []connector.Transfer
	id := fmt.Sprint("save ", e.calls)
	for slot := range e.using {
		if e.using[slot] != "" || e.random.IntN(2) == 0 {
			continue
		}
		e.version++
		e.using[slot] = id
		version := e.version
		stream <- func() { e.d.fill(slot, version) }
		ts = append(ts, connector.Transfer{Blocks: []connector.PlanBlock{{Slot: uint32(slot), Key: versionKey(version), Proof: versionProof(version)}}})
	}
	mustSaveLater(e.t, e.w, &e.ledger, id, ts...)
	e.calls++
	e.saves++
	call := e.calls
	stream <- func() { e.page.Reach(call) }
}

// preempt takes some blocks back, which the next steps may compute.
func (e *laterEngine) preempt() {
	var taken []uint32
	for slot := range e.using {
		if e.using[slot] != "" && e.random.IntN(8) == 0 {
			taken = append(taken, uint32(slot))
			e.using[slot] = ""
		}
	}
	e.ledger.Revoke(taken)
}

func (e *laterEngine) poll() {
	p, err := e.w.Poll(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	e.saves -= len(p.Stored)
	for _, s := range p.Stored {
		for slot := range e.using {
			if e.using[slot] == s.ID {
				e.using[slot] = ""
			}
		}
	}
}

func versionKey(v uint64) (k connector.Key) {
	binary.BigEndian.PutUint64(k[:], v)
	return k
}

func versionProof(v uint64) (p connector.Proof) {
	binary.BigEndian.PutUint64(p[:], v)
	return p
}

// An engine overwrites blocks as soon as it has revoked them, at any moment of their saves: what is stored under a key is what was
// computed for it, or nothing.
func TestNoByteOfAnOverwrittenBlockIsKept(t *testing.T) {
	s := openStore(t)
	d := new(tornDevice)
	w := newWorker(t, s, func(o *Options, _ *host.AccountOptions) { o.Driver = d })
	e := &laterEngine{t: t, w: w, d: d, random: seed.Random(t, 0)}
	e.page = register(t, w, newEngineMemory(t))
	e.ledger.Attach(e.page)
	// The stream executes in order what is queued there, later than the engine queues it.
	stream := make(chan func(), 64)
	var device sync.WaitGroup
	device.Go(func() {
		for work := range stream {
			work()
		}
	})
	for range 600 {
		e.step(stream)
		for range e.random.IntN(200) {
			runtime.Gosched()
		}
		if e.random.IntN(2) == 0 {
			e.preempt()
		}
		for most := e.random.IntN(6); ; runtime.Gosched() {
			if e.poll(); e.saves <= most {
				break
			}
		}
	}
	close(stream)
	device.Wait()
	settle(t, w)
	kept := 0
	for v := uint64(1); v <= e.version; v++ {
		id := store.RecordID{Namespace: testNamespace(), Key: versionKey(v)}
		if !storetest.Has(s, id) {
			continue
		}
		kept++
		payload := readBack(t, s, v)
		for i := 0; i < len(payload); i += 4 {
			if got := binary.LittleEndian.Uint32(payload[i:]); got != uint32(v) {
				t.Fatalf("block %d holds bytes of block %d", v, got)
			}
		}
	}
	t.Logf("%d of %d blocks were kept", kept, e.version)
	if kept == 0 || kept == int(e.version) {
		t.Errorf("%d of %d blocks were kept: the test shows nothing", kept, e.version)
	}
}

// readBack is the payload of a stored block.
func readBack(t *testing.T, s store.Tier, version uint64) []byte {
	t.Helper()
	op := &store.ReadOp{Record: store.Record{ID: store.RecordID{Namespace: testNamespace(), Key: versionKey(version)}, Proof: versionProof(version)}}
	op.Payload = store.AlignedBuffer(layers * pieceBytes)
	done := make(chan error, 1)
	s.Read(t.Context(), []*store.ReadOp{op}, func(op *store.ReadOp) { done <- op.Err })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return op.Payload
}
