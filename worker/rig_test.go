package worker

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/fence"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/testkit/memfd"
	"github.com/kvconn/kvconn/internal/testkit/storetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
)

// testWait is what only a broken worker, store or disk reaches.
const testWait = time.Minute

// Two layers of 16 blocks whose pieces are no multiple of a page.
const (
	blocks     = 16
	layers     = 2
	pieceBytes = 3000
)

func testLayout() connector.Layout {
	return connector.Layout{Groups: []connector.GroupLayout{{Blocks: blocks, Runs: []connector.Run{{
		Offset: 100, Layers: layers, LayerStride: blocks * pieceBytes, BlockStride: pieceBytes, Bytes: pieceBytes,
	}}}}}
}

// engineMemory is a memfd that holds the layout, filled with a pattern by block.
type engineMemory struct {
	t *testing.T
	f *os.File
}

func newEngineMemory(t *testing.T) *engineMemory {
	t.Helper()
	return &engineMemory{t, memfd.New(t, 100+blocks*layers*pieceBytes)}
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
func transfer(first int, slots ...uint32) connector.Transfer {
	t := connector.Transfer{Parent: connector.Key{byte(first)}}
	for i, s := range slots {
		t.Blocks = append(t.Blocks, connector.PlanBlock{Slot: s, Key: connector.Key{byte(first + i + 1)}, Proof: connector.Proof{byte(first + i + 1)}})
	}
	return t
}

// loadOf is the load of one request.
func loadOf(request string, ts ...connector.Transfer) connector.RequestLoad {
	return connector.RequestLoad{Request: request, Transfers: ts}
}

func loads(ls ...connector.RequestLoad) []byte {
	return (&connector.Plan{Namespace: testNamespace(), Loads: ls}).Append(nil)
}
func saves(ts ...connector.Transfer) []byte {
	return (&connector.Plan{Namespace: testNamespace(), Saves: ts}).Append(nil)
}

func testManifest() *connector.Manifest {
	return &connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16,
		Groups:         []connector.Group{{Layers: 2, KVHeads: 1, HeadSize: 8, Layout: "x"}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	}
}

// testNamespace is that of testManifest, in which all workers here keep their records.
func testNamespace() connector.NamespaceDigest { return testManifest().Digest() }

func openStore(t *testing.T) *disk.Store {
	t.Helper()
	return openStoreOn(t, nil, 0)
}

// openStoreOn opens a store on a disk that does as told, nil for an ordinary one, with that
// many writers, 0 for the default.
func openStoreOn(t *testing.T, d *storetest.Disk, writers int) *disk.Store {
	t.Helper()
	o := disk.Options{Dir: t.TempDir(), MaxBytes: 64 << 20, Writers: writers, ReadTimeout: testWait, SlotWait: testWait}
	if d != nil {
		o = d.Under(o)
	}
	s, err := disk.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if ns, err := s.OpenNamespace(testManifest()); err != nil || ns != testNamespace() {
		t.Fatal(ns, err)
	}
	return s
}

// newArena makes a host tier that must be empty-handed when the test ends.
func newArena(t *testing.T, bytes int64) *host.Arena {
	t.Helper()
	a, err := host.New(host.Options{Bytes: bytes, PopulateAheadBytes: 2 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// newWorker returns a worker with a host tier of its own: what it loads comes from disk
// unless it has saved or loaded it before.
func newWorker(t *testing.T, s store.Tier, change func(*Options, *host.AccountOptions)) *Worker {
	t.Helper()
	o := Options{Namespace: testNamespace(), Driver: &gpu.HostDriver{}, Manifest: testManifest(), LoadTimeout: testWait}
	ao := host.AccountOptions{Namespace: testNamespace()}
	if change != nil {
		change(&o, &ao)
	}
	a := newArena(t, 16<<20)
	o.Cache = host.NewCache(a, s)
	var err error
	if o.Account, err = a.Account(ao); err != nil {
		t.Fatal(err)
	}
	w, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.Close()
		settle(t, w)
		// Reads that a load gave up end after it. An account that stays would narrow the shares of others.
		wait.For(t, "all accounts at the host tier are let go", func() bool { return a.Stats().Accounts == 0 })
	})
	return w
}

// pinned is what the worker's loads and saves hold of the host tier.
func pinned(w *Worker) int64 { return w.opts.Cache.Stats().UsedBytes }

// settle waits until nothing is under way.
func settle(t *testing.T, w *Worker) {
	t.Helper()
	for deadline := time.Now().Add(testWait); !w.Drained(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("loads or saves stay under way")
		}
	}
}

// register gives the worker memory and returns the engine's fence page.
func register(t *testing.T, w *Worker, m *engineMemory) *fence.Page {
	t.Helper()
	l := testLayout()
	return registerLayout(t, w, m, &l)
}

func registerLayout(t *testing.T, w *Worker, m *engineMemory, l *connector.Layout) *fence.Page {
	t.Helper()
	page, f, err := fence.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = page.Close() })
	if n, err := w.Register(t.Context(), l, m.descriptor(), f); err != nil || len(n) != len(l.Groups) || n[0] != layers*pieceBytes {
		t.Fatalf("Register = %d, %v; want %d", n, err, layers*pieceBytes)
	}
	return page
}

// poll waits for n finished loads.
func poll(t *testing.T, w *Worker, n int) []connector.FinishedLoad {
	t.Helper()
	var out []connector.FinishedLoad
	for deadline := time.Now().Add(testWait); len(out) < n; time.Sleep(time.Millisecond) {
		done, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if out = append(out, done.Finished...); time.Now().After(deadline) {
			t.Fatalf("%d loads ended, want %d", len(out), n)
		}
	}
	return out
}

// stored waits for n saves by key that have ended.
func stored(t *testing.T, w *Worker, n int) []connector.StoredPut {
	t.Helper()
	var out []connector.StoredPut
	for deadline := time.Now().Add(testWait); len(out) < n; time.Sleep(time.Millisecond) {
		done, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if out = append(out, done.Stored...); time.Now().After(deadline) {
			t.Fatalf("%d saves ended, want %d", len(out), n)
		}
	}
	return out
}

// slowStore answers when the test says so, as a disk that hangs would. What it stands
// for is tested with the real store in package disk.
type slowStore struct {
	store.Tier
	release chan struct{}
	refuse  bool
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
	go func() {
		<-s.release
		for _, op := range ops {
			done(op)
		}
	}()
	return len(ops), nil
}

func (s *slowStore) Name() string { return "slow" }

func (s *slowStore) Present(connector.NamespaceDigest, connector.Shard, []connector.Key, []bool) {}

func (s *slowStore) HoldPayload(connector.NamespaceDigest, connector.Shard, int) error { return nil }

func (s *slowStore) ReleasePayload(connector.NamespaceDigest, connector.Shard) {}

// hookDriver is the host driver with something happening before each copy.
type hookDriver struct {
	gpu.HostDriver
	before func(gpu.Direction)
}

func (d *hookDriver) Open(files []*os.File) (gpu.Memory, error) {
	m, err := d.HostDriver.Open(files)
	return &hookMemory{m, d.before}, err
}

type hookMemory struct {
	gpu.Memory
	before func(gpu.Direction)
}

func (m *hookMemory) Copy(ctx context.Context, b *gpu.Batch) error {
	m.before(b.Direction)
	return m.Memory.Copy(ctx, b)
}
