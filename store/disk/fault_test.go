package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"golang.org/x/sys/unix"
)

func memOptions(d *memDisk, j vfs.FS) Options {
	o := testOptions("/store")
	o.fs, o.journalFS = d, j
	return o
}

func newJournalFS() *vfs.MemFS {
	m := vfs.NewCrashableMem()
	if err := m.MkdirAll("/store/index", 0o700); err != nil {
		panic(err)
	}
	for _, dir := range []string{"/", "/store"} {
		d, err := m.OpenDir(dir)
		if err == nil {
			err = d.Sync()
		}
		if err != nil {
			panic(err)
		}
	}
	return m
}

// TestPowerLossKeepsWhatABarrierMadeDurable cuts the power at random moments of writing,
// syncing and evicting. Sectors and log blocks that were not synced are kept or lost at
// random.
func TestPowerLossKeepsWhatABarrierMadeDurable(t *testing.T) {
	t.Parallel()
	rounds := uint64(20)
	if longTest() {
		rounds = 500
	}
	first := seed.Of(t)
	for n := range rounds {
		t.Run(fmt.Sprint("seed ", first+n), func(t *testing.T) { powerLoss(t, first+n) })
	}
}

func powerLoss(t *testing.T, number uint64) {
	g := rand.New(rand.NewPCG(number, 4))
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.MaxBytes = []int64{10 << 20, 64 << 20}[number%2] // one that evicts and one that does not
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	const chains, length = 30, 12
	var durable atomic.Int64
	cutAt := g.IntN(chains)
	var after *memDisk
	var afterJournal *vfs.MemFS
	var synced int64
	cut := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		g := rand.New(rand.NewPCG(number, 6))
		<-cut
		time.Sleep(time.Duration(g.IntN(3000)) * time.Microsecond)
		synced = durable.Load()
		after = d.crash(g, func() {
			afterJournal = j.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: g.IntN(101), RNG: rand.New(rand.NewPCG(number, 5))})
		})
	})
	for chain := range chains {
		if chain == cutAt {
			close(cut)
		}
		mustWrite(t, s, chainOf(ns, chain, length))
		if g.IntN(3) == 0 {
			if err := s.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			durable.Store(int64(chain) + 1)
		}
	}
	cutter.Wait()

	o.fs, o.journalFS = after, afterJournal
	again := openTest(t, o)
	watchCap(t, o).of(again)
	awaitRebuild(t, again)
	ns = openNamespace(t, again, "a")
	for chain := range chains {
		for i, err := range readAll(t, again, chainOf(ns, chain, length)) {
			switch {
			case err == nil, errors.Is(err, store.ErrGone), errors.Is(err, store.ErrCorrupt):
			default:
				t.Errorf("chain %d block %d: %v", chain, i, err)
			}
			if err != nil && int64(chain) < synced && o.MaxBytes == 64<<20 {
				t.Errorf("chain %d block %d was durable: %v", chain, i, err)
			}
		}
	}
	checkAccounting(t, again)
	mustWrite(t, again, chainOf(ns, 1000, length))
	mustRead(t, again, chainOf(ns, 1000, length))
}

// scenario opens a store, writes, syncs, reads and closes. Every step may fail, none may
// hang or give wrong bytes. It returns the chains that a successful Sync made durable and
// that were not evicted.
func scenario(t *testing.T, o Options) (durable int, failed bool) {
	t.Helper()
	w := watchCap(t, o)
	defer w.stop()
	s, err := Open(context.Background(), o)
	if err != nil {
		return 0, true
	}
	w.of(s)
	defer func() {
		w.of(nil)
		if s.Stats().Evicted > 0 {
			durable = 0
		}
		failed = s.Close() != nil || failed
	}()
	ns, err := s.OpenNamespace(testManifest("a"))
	if err != nil {
		return 0, true
	}
	for chain := range 3 {
		clean := true
		for _, err := range writeAll(t, s, chainOf(ns, chain, 8)) {
			clean = clean && err == nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := s.Sync(ctx)
		cancel()
		if err == nil && clean && durable == chain {
			durable = chain + 1
		}
		failed = failed || err != nil || !clean
		for _, err := range readAll(t, s, chainOf(ns, chain, 8)) {
			failed = failed || err != nil
		}
	}
	return durable, failed
}

func checkAfterFault(t *testing.T, o Options, durable int) {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatalf("open after the fault: %v", err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	awaitRebuild(t, s)
	ns := openNamespace(t, s, "a")
	for chain := range 3 {
		for i, err := range readAll(t, s, chainOf(ns, chain, 8)) {
			if err != nil && (chain < durable || !errors.Is(err, store.ErrGone)) {
				t.Errorf("chain %d block %d (%d chains durable): %v", chain, i, durable, err)
			}
		}
	}
	checkAccounting(t, s)
}

// TestEveryNthOperationFails lets the disk fail once, at each of its operations in turn.
func TestEveryNthOperationFails(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{unix.EIO, unix.ENOSPC} {
		t.Run(fault.Error(), func(t *testing.T) {
			step := int64(11)
			if longTest() {
				step = 1
			}
			for n := int64(1); ; n += step {
				d, j := newMemDisk(), newJournalFS()
				before, count := failNth(n, fault)
				d.hook(before)
				durable, failed := scenario(t, memOptions(d, j))
				reached := count() >= n
				d.before.Store(nil)
				checkAfterFault(t, memOptions(d, j), durable)
				if t.Failed() {
					t.Fatalf("at operation %d", n)
				}
				if !reached {
					if failed {
						t.Error("failed without a fault")
					}
					return
				}
			}
		})
	}
}

// TestEveryNthOperationIsSlow lets each operation of the disk in turn take far longer than
// the others, long enough for barriers and evictions to come first. Nothing fails by it.
func TestEveryNthOperationIsSlow(t *testing.T) {
	t.Parallel()
	step := int64(7)
	if longTest() {
		step = 1
	}
	for n := int64(1); ; n += step {
		d, j := newMemDisk(), newJournalFS()
		var seen atomic.Int64
		d.hook(func(string, string) error {
			if seen.Add(1) == n {
				time.Sleep(slowOperation)
			}
			return nil
		})
		durable, failed := scenario(t, memOptions(d, j))
		reached := seen.Load() >= n
		d.before.Store(nil)
		checkAfterFault(t, memOptions(d, j), durable)
		if failed {
			t.Error("a slow operation made something fail")
		}
		if t.Failed() {
			t.Fatalf("at operation %d", n)
		}
		if !reached {
			return
		}
	}
}

// slowOperation is several barrier intervals of memOptions.
const slowOperation = 15 * time.Millisecond

// TestEveryNthJournalOperationFails does the same to the journal's file system.
func TestEveryNthJournalOperationFails(t *testing.T) {
	step := int32(3)
	if longTest() {
		step = 1
	}
	for n := int32(0); ; n += step {
		d, j := newMemDisk(), newJournalFS()
		var seen atomic.Int32
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && seen.Add(1) == n+1 {
				return errorfs.ErrInjected
			}
			return nil
		})
		durable, failed := scenario(t, memOptions(d, errorfs.Wrap(j, inject)))
		reached := seen.Load() > n
		checkAfterFault(t, memOptions(d, j.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})), durable)
		if t.Failed() {
			t.Fatalf("at operation %d", n)
		}
		if !reached {
			if failed {
				t.Error("failed without a fault")
			}
			return
		}
	}
}

func TestFailedReadKeepsTheRecord(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 1)
	mustWrite(t, s, records)
	var broken atomic.Bool
	d.hook(func(op, _ string) error {
		if op == "read" && broken.Load() {
			return unix.EIO
		}
		return nil
	})
	broken.Store(true)
	err := readAll(t, s, records)[0]
	if !errors.Is(err, store.ErrIO) || !errors.Is(err, unix.EIO) || errors.Is(err, store.ErrCorrupt) {
		t.Errorf("error %v", err)
	}
	broken.Store(false)
	mustRead(t, s, records)
	if st := s.Stats(); st.ReadErrors != 1 || st.Corrupt != 0 {
		t.Errorf("%d read errors, %d corrupt", st.ReadErrors, st.Corrupt)
	}
}

func TestFullFilesystemGoesOnWithWhatItHas(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	d.room = 4 << 20
	o := memOptions(d, j)
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	for chain := range 20 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	mustRead(t, s, chainOf(ns, 19, 20))
	used, _ := d.PhysicalBytes("/")
	if st := s.Stats(); st.Evicted == 0 || used > d.room {
		t.Errorf("%d evicted, %d bytes", st.Evicted, used)
	}
}

// TestHungDiskCostsTheReadAndNothingElse holds up one read in the disk.
func TestHungDiskCostsTheReadAndNothingElse(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.ReadTimeout = 20 * time.Millisecond
	var stopped atomic.Pointer[time.Time]
	o.clock = func() time.Time {
		if at := stopped.Load(); at != nil {
			return *at
		}
		return time.Now()
	}
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 4)
	mustWrite(t, s, records)
	release := make(chan struct{})
	var hang atomic.Int64
	hang.Store(1)
	d.hook(func(op, _ string) error {
		if op == "read" && hang.Add(-1) == 0 {
			<-release
		}
		return nil
	})
	settled := make(chan *store.ReadOp, 1)
	r := &records[0]
	op := &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes),
		OnSettled: func(op *store.ReadOp) { settled <- op }}
	calls := 0
	s.Read(context.Background(), []*store.ReadOp{op}, func(*store.ReadOp) { calls++ })
	if calls != 1 || !errors.Is(op.Err, store.ErrTimeout) || op.Settled() {
		t.Fatalf("%d calls, %v, settled %v", calls, op.Err, op.Settled())
	}
	now := time.Now()
	stopped.Store(&now) // the disk hangs no more, but the machine may be busy
	mustRead(t, s, records[1:])
	mustWrite(t, s, chainOf(ns, 2, 4))
	close(release)
	if got := <-settled; got != op || !op.Settled() {
		t.Error("not settled after the disk had answered")
	}
	mustRead(t, s, records)
	if st := s.Stats(); st.ReadTimeouts != 1 || st.ReadInFlightBytes != 0 {
		t.Errorf("%d timeouts, %d bytes in flight", st.ReadTimeouts, st.ReadInFlightBytes)
	}
}

// TestEndedContextEndsQueuedReads has a disk that answers nothing.
func TestEndedContextEndsQueuedReads(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.ReadInFlightBytes, o.ChunkBytes = 32<<10, 32<<10
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	release, asked := make(chan struct{}), make(chan struct{}, 100)
	d.hook(func(op, _ string) error {
		if op == "read" {
			asked <- struct{}{}
			<-release
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }()
	ops := make([]*store.ReadOp, len(records))
	for i, r := range records {
		ops[i] = &store.ReadOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: store.AlignedBuffer(r.Bytes)}
	}
	s.Read(ctx, ops, func(*store.ReadOp) {})
	unsettled := 0
	for i, op := range ops {
		if !errors.Is(op.Err, store.ErrTimeout) || !errors.Is(op.Err, context.Canceled) {
			t.Errorf("op %d: %v", i, op.Err)
		}
		if !op.Settled() {
			unsettled++
		}
	}
	if unsettled != 1 {
		t.Errorf("%d ops are unsettled, one was asked for", unsettled)
	}
	close(release)
	for !ops[0].Settled() {
		time.Sleep(time.Millisecond)
	}
	mustRead(t, s, records)
}

func TestReadOnlyAndFullFilesystemsAreClearErrors(t *testing.T) {
	for _, fault := range []error{unix.EROFS, unix.ENOSPC} {
		d, j := newMemDisk(), newJournalFS()
		d.hook(func(op, _ string) error {
			if op == "open" {
				return nil
			}
			return fault
		})
		if s, err := Open(context.Background(), memOptions(d, j)); !errors.Is(err, fault) {
			t.Errorf("%v: %v, %v", fault, s, err)
		}
	}
}
