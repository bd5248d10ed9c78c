package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/store"
)

// Two layers of 16 blocks whose pieces are no multiple of a page.
const (
	blocks     = 16
	layers     = 2
	pieceBytes = 3000
)

func testLayout() connector.Layout {
	return connector.Layout{Blocks: blocks, Runs: []connector.Run{{
		Offset: 100, Layers: layers, LayerStride: blocks * pieceBytes, BlockStride: pieceBytes, Bytes: pieceBytes,
	}}}
}

// engineMemory is a memfd that holds the layout, filled with a pattern by block.
type engineMemory struct {
	t *testing.T
	f *os.File
}

func newEngineMemory(t *testing.T) *engineMemory {
	t.Helper()
	fd, err := unix.MemfdCreate("kv", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	m := &engineMemory{t, os.NewFile(uintptr(fd), "kv")}
	t.Cleanup(func() { _ = m.f.Close() })
	if err := m.f.Truncate(100 + blocks*layers*pieceBytes); err != nil {
		t.Fatal(err)
	}
	return m
}

// descriptor is a copy for the worker to own.
func (m *engineMemory) descriptor() []*os.File {
	m.t.Helper()
	fd, err := unix.FcntlInt(m.f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	return []*os.File{os.NewFile(uintptr(fd), "kv")}
}

// content is what block content number n looks like.
func content(n, layer int) []byte {
	return bytes.Repeat([]byte{byte(n), byte(layer), 0xab}, pieceBytes/3)
}

func (m *engineMemory) fill(slot, n int) {
	m.t.Helper()
	for layer := range layers {
		if _, err := m.f.WriteAt(content(n, layer), int64(100+layer*blocks*pieceBytes+slot*pieceBytes)); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *engineMemory) holds(slot, n int) bool {
	m.t.Helper()
	b := make([]byte, pieceBytes)
	for layer := range layers {
		if _, err := m.f.ReadAt(b, int64(100+layer*blocks*pieceBytes+slot*pieceBytes)); err != nil {
			m.t.Fatal(err)
		}
		if !bytes.Equal(b, content(n, layer)) {
			return false
		}
	}
	return true
}

// transfer moves the chain's blocks first to first+len(slots) by these slots.
func transfer(request string, first int, slots ...uint32) connector.Transfer {
	t := connector.Transfer{Request: request, Parent: connector.Key{byte(first)}}
	for i, s := range slots {
		t.Blocks = append(t.Blocks, connector.PlanBlock{Slot: s, Key: connector.Key{byte(first + i + 1)}, Proof: connector.Proof{byte(first + i + 1)}})
	}
	return t
}

func loads(ts ...connector.Transfer) []byte { return (&connector.Plan{Loads: ts}).Append(nil) }
func saves(ts ...connector.Transfer) []byte { return (&connector.Plan{Saves: ts}).Append(nil) }

func openStore(t *testing.T) (*store.Store, store.NamespaceID) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Dir: t.TempDir(), MaxBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	ns, err := s.OpenNamespace(&connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 8, Layout: "x"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s, ns
}

func newWorker(t *testing.T, s Store, change func(*Options)) *Worker {
	t.Helper()
	o := Options{Driver: &gpu.HostDriver{}, LoadStagingBytes: 1 << 16, SaveStagingBytes: 1 << 20}
	if change != nil {
		change(&o)
	}
	w, err := New(o, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func register(t *testing.T, w *Worker, m *engineMemory) {
	t.Helper()
	l := testLayout()
	if n, err := w.Register(t.Context(), &l, m.descriptor()); err != nil || n != layers*pieceBytes {
		t.Fatalf("Register = %d, %v; want %d", n, err, layers*pieceBytes)
	}
}

// poll waits for n finished loads.
func poll(t *testing.T, w *Worker, n int) []connector.FinishedLoad {
	t.Helper()
	var out []connector.FinishedLoad
	for deadline := time.Now().Add(30 * time.Second); len(out) < n; time.Sleep(time.Millisecond) {
		done, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if out = append(out, done...); time.Now().After(deadline) {
			t.Fatalf("%d loads ended, want %d", len(out), n)
		}
	}
	return out
}

func mustSave(t *testing.T, w *Worker, ts ...connector.Transfer) {
	t.Helper()
	want := 0
	for _, x := range ts {
		want += len(x.Blocks)
	}
	before := w.Stats().SavedBlocks
	r, err := w.Save(t.Context(), saves(ts...))
	if err != nil || r.Taken != want {
		t.Fatalf("Save = %+v, %v; want %d taken", r, err, want)
	}
	for w.Stats().SavedBlocks < before+uint64(want) {
		time.Sleep(time.Millisecond)
	}
}

func TestBlocksComeBackToOtherSlots(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, w, m)
	for slot := range 12 {
		m.fill(slot, 50+slot)
	}
	mustSave(t, w, transfer("r", 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
	for slot := range blocks {
		m.fill(slot, 1)
	}
	n, err := w.Load(t.Context(), loads(transfer("a", 0, 15, 14, 13), transfer("b", 8, 3, 2, 1, 0)))
	if err != nil || n != 2 {
		t.Fatalf("Load = %d, %v", n, err)
	}
	for _, l := range poll(t, w, 2) {
		if len(l.FailedBlocks) != 0 {
			t.Errorf("load %s: blocks %v failed", l.Request, l.FailedBlocks)
		}
	}
	for slot, n := range map[int]int{15: 50, 14: 51, 13: 52, 3: 58, 2: 59, 1: 60, 0: 61, 7: 1, 12: 1} {
		if !m.holds(slot, n) {
			t.Errorf("slot %d does not hold content %d", slot, n)
		}
	}
}

// A save is copied before Save returns: the engine overwrites the block at once.
func TestSaveIsCopiedBeforeItReturns(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, w, m)
	for round := range 20 {
		m.fill(0, round)
		if _, err := w.Save(t.Context(), saves(transfer("r", round, 0))); err != nil {
			t.Fatal(err)
		}
	}
	for w.Stats().SavedBlocks < 20 {
		time.Sleep(time.Millisecond)
	}
	for round := range 20 {
		if _, err := w.Load(t.Context(), loads(transfer("r", round, 5))); err != nil {
			t.Fatal(err)
		}
		if l := poll(t, w, 1); len(l[0].FailedBlocks) != 0 || !m.holds(5, round) {
			t.Errorf("block %d came back wrong (failed %v)", round, l[0].FailedBlocks)
		}
	}
}

func TestMissingAndForeignBlocksFailAloneAndLeaveMemoryAlone(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, w, m)
	m.fill(0, 7)
	mustSave(t, w, transfer("r", 0, 0))
	m.fill(8, 1)
	x := transfer("x", 0, 8, 9, 200) // block 1 is not stored, slot 200 not registered
	otherProof := transfer("y", 0, 10)
	otherProof.Blocks[0].Proof[5]++
	otherParent := transfer("z", 0, 11)
	otherParent.Parent[3]++
	if _, err := w.Load(t.Context(), loads(x, otherProof, otherParent)); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, l := range poll(t, w, 3) {
		slices.Sort(l.FailedBlocks)
		got[l.Request] = fmt.Sprint(l.FailedBlocks)
	}
	for request, want := range map[string]string{"x": "[9 200]", "y": "[10]", "z": "[11]"} {
		if got[request] != want {
			t.Errorf("load %s: blocks %s failed, want %s", request, got[request], want)
		}
	}
	if !m.holds(8, 7) {
		t.Error("the good block did not arrive")
	}
	for _, slot := range []int{9, 10, 11} {
		if m.holds(slot, 7) {
			t.Errorf("slot %d was written though its block failed", slot)
		}
	}
}

func TestMemoryIsNeededAndMetadataChecked(t *testing.T) {
	s, ns := openStore(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	if _, err := w.Load(t.Context(), loads(transfer("r", 0, 1))); !errors.Is(err, connector.ErrNotRegistered) {
		t.Errorf("Load = %v, want ErrNotRegistered", err)
	}
	if _, err := w.Save(t.Context(), saves(transfer("r", 0, 1))); !errors.Is(err, connector.ErrNotRegistered) {
		t.Errorf("Save = %v, want ErrNotRegistered", err)
	}
	register(t, w, newEngineMemory(t))
	other := (&connector.Plan{Namespace: connector.NamespaceDigest{1}}).Append(nil)
	for name, meta := range map[string][]byte{"garbage": []byte("garbage"), "empty": nil, "other namespace": other} {
		if _, err := w.Load(t.Context(), meta); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("Load of %s = %v, want ErrBadRequest", name, err)
		}
		if _, err := w.Save(t.Context(), meta); !errors.Is(err, connector.ErrBadRequest) {
			t.Errorf("Save of %s = %v, want ErrBadRequest", name, err)
		}
	}
	l := testLayout()
	l.Blocks++
	if _, err := w.Register(t.Context(), &l, newEngineMemory(t).descriptor()); !errors.Is(err, connector.ErrLayout) || !errors.Is(err, connector.ErrBadRequest) {
		t.Errorf("Register of a layout that is too large = %v, want ErrLayout", err)
	}
}

func TestSavesThatFindNoRoomAreDropped(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, func(o *Options) { o.SaveStagingBytes = 1 }) // the least: four slots
	register(t, w, m)
	r, err := w.Save(t.Context(), saves(transfer("r", 0, 0, 1, 2, 3, 4, 5, 6)))
	if err != nil || r.Taken != 4 || r.Dropped != 3 {
		t.Errorf("Save = %+v, %v; want 4 taken and 3 dropped", r, err)
	}
	slow.refuse = true
	close(slow.release)
	for slow.pending() > 0 {
		time.Sleep(time.Millisecond)
	}
	r, err = w.Save(t.Context(), saves(transfer("r", 0, 0, 1)))
	if err != nil || r.Taken != 0 || r.Dropped != 2 {
		t.Errorf("Save with a busy store = %+v, %v; want 2 dropped", r, err)
	}
}

// slowStore answers when the test says so, as a disk that hangs would. What it stands
// for is tested with the real store in package store.
type slowStore struct {
	release chan struct{}
	refuse  bool
	mu      sync.Mutex
	open    int
}

func (s *slowStore) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *slowStore) Read(_ context.Context, ops []*store.ReadOp, done func(*store.ReadOp)) {
	<-s.release
	for _, op := range ops {
		copy(op.Payload, bytes.Repeat([]byte{0xee}, len(op.Payload)))
		done(op)
	}
}

func (s *slowStore) Write(ops []*store.WriteOp, done func(*store.WriteOp)) (int, error) {
	if s.refuse {
		return 0, store.ErrBusy
	}
	s.mu.Lock()
	s.open += len(ops)
	s.mu.Unlock()
	go func() {
		<-s.release
		for _, op := range ops {
			done(op)
			s.mu.Lock()
			s.open--
			s.mu.Unlock()
		}
	}()
	return len(ops), nil
}

func TestLoadEndsAtItsDeadlineAndNothingIsWrittenAfterwards(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, func(o *Options) { o.LoadTimeout = 20 * time.Millisecond })
	register(t, w, m)
	m.fill(4, 9)
	if _, err := w.Load(t.Context(), loads(transfer("r", 0, 4, 5))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 2 {
		t.Errorf("blocks %v failed, want both", l[0].FailedBlocks)
	}
	close(slow.release) // the disk wakes up
	w.mu.Lock()
	mem := w.mem
	w.mu.Unlock()
	mem.users.Wait()
	if !m.holds(4, 9) {
		t.Error("engine memory was written after the load was reported as failed")
	}
}

func TestCloseFencesWhatIsUnderWay(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, nil)
	register(t, w, m)
	m.fill(4, 9)
	if _, err := w.Load(t.Context(), loads(transfer("r", 0, 4))); err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	mem := w.mem
	w.mu.Unlock()
	w.Close()
	close(slow.release)
	mem.users.Wait()
	if !m.holds(4, 9) {
		t.Error("engine memory was written after Close")
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(maps, []byte("memfd:kv")) {
		t.Error("engine memory is still mapped after Close")
	}
}

// An engine that hangs up during a save goes on and overwrites the block: what was
// copied may be anything.
func TestSaveThatTheEngineGaveUpIsNotStored(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	gone := false
	w := newWorker(t, s, func(o *Options) {
		o.Namespace = ns
		o.Driver = &hookDriver{copyOut: func() { m.fill(0, 99); gone = true }}
		o.PeerGone = func() bool { return gone }
	})
	register(t, w, m)
	m.fill(0, 7)
	r, err := w.Save(t.Context(), saves(transfer("r", 0, 0)))
	if err != nil || r.Taken != 0 || r.Dropped != 1 {
		t.Errorf("Save = %+v, %v; want the block dropped", r, err)
	}
	if s.Has(store.RecordID{Namespace: ns, Key: connector.Key{1}}) {
		t.Error("the block is stored")
	}
}

// hookDriver is the host driver with something happening before each copy.
type hookDriver struct {
	gpu.HostDriver
	copyOut, copyIn func()
}

func (d *hookDriver) CopyOut(ctx context.Context, p []gpu.Piece) error {
	if d.copyOut != nil {
		d.copyOut()
	}
	return d.HostDriver.CopyOut(ctx, p)
}

func (d *hookDriver) CopyIn(ctx context.Context, p []gpu.Piece) error {
	if d.copyIn != nil {
		d.copyIn()
	}
	return d.HostDriver.CopyIn(ctx, p)
}

func TestNothingIsLoadedForAnEngineThatHungUp(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	var copies atomic.Int32
	w := newWorker(t, s, func(o *Options) {
		o.Namespace = ns
		o.Driver = &hookDriver{copyIn: func() { copies.Add(1) }}
		o.PeerGone = func() bool { return copies.Load() > 0 }
	})
	register(t, w, m)
	for slot := range 8 {
		m.fill(slot, 50+slot)
	}
	saver := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, saver, m)
	mustSave(t, saver, transfer("r", 0, 0, 1, 2, 3, 4, 5, 6, 7))
	if _, err := w.Load(t.Context(), loads(transfer("a", 0, 8, 9, 10, 11, 12, 13, 14, 15))); err != nil {
		t.Fatal(err)
	}
	// Copies that run side by side may both have seen the engine there.
	if l := poll(t, w, 1); len(l[0].FailedBlocks) < 8-runtime.GOMAXPROCS(0)*4 || int(copies.Load()) != 8-len(l[0].FailedBlocks) {
		t.Errorf("%d copies, %d blocks failed, after the engine hung up at the first", copies.Load(), len(l[0].FailedBlocks))
	}
}

func TestEngineThatTruncatesItsMemoryCostsOnlyItsOwnBlocks(t *testing.T) {
	s, ns := openStore(t)
	m := newEngineMemory(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, w, m)
	mustSave(t, w, transfer("r", 0, 0, 1))
	if err := m.f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Load(t.Context(), loads(transfer("r", 0, 0, 1))); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 2 {
		t.Errorf("blocks %v failed, want both", l[0].FailedBlocks)
	}
	if r, err := w.Save(t.Context(), saves(transfer("r", 5, 3))); err != nil || r.Dropped != 1 {
		t.Errorf("Save = %+v, %v; want the block dropped", r, err)
	}
}

func TestRepeatedLoadOfOneRequestIsReportedOnce(t *testing.T) {
	slow := &slowStore{release: make(chan struct{})}
	m := newEngineMemory(t)
	w := newWorker(t, slow, nil)
	register(t, w, m)
	for range 3 {
		if _, err := w.Load(t.Context(), loads(transfer("r", 0, 4))); err != nil {
			t.Fatal(err)
		}
	}
	close(slow.release)
	poll(t, w, 1)
	w.mu.Lock()
	mem := w.mem
	w.mu.Unlock()
	mem.users.Wait()
	if more, _ := w.Poll(t.Context()); len(more) != 0 {
		t.Errorf("reported again: %+v", more)
	}
}

func TestEmptyLoadEndsAtOnce(t *testing.T) {
	s, ns := openStore(t)
	w := newWorker(t, s, func(o *Options) { o.Namespace = ns })
	register(t, w, newEngineMemory(t))
	if _, err := w.Load(t.Context(), loads(connector.Transfer{Request: "r"})); err != nil {
		t.Fatal(err)
	}
	if l := poll(t, w, 1); len(l[0].FailedBlocks) != 0 {
		t.Errorf("%+v", l)
	}
}
