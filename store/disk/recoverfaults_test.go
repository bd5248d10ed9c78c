package disk

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// hungJournal is a journal's file system in which making files hangs, or fails.
type hungJournal struct {
	on, failing atomic.Bool
	hung        chan struct{}
	release     chan struct{}
}

func newHungJournal() *hungJournal {
	return &hungJournal{hung: make(chan struct{}, 1), release: make(chan struct{})}
}

func (h *hungJournal) under(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpCreate {
			return nil
		}
		if h.on.Load() && !h.failing.Load() {
			select {
			case h.hung <- struct{}{}:
			default:
			}
			<-h.release
		}
		if h.failing.Load() {
			return &os.PathError{Op: "create", Path: op.Path, Err: unix.EIO}
		}
		return nil
	}))
}

// A payload size is asked for while the journal has failed in the middle of a commit, whose
// batch is still in use.
func TestNothingIsForgottenIntoABatchThatHangs(t *testing.T) {
	h := newHungJournal()
	d := newMemDisk()
	o := memOptions(d, h.under(newJournalFS()))
	s := watchCap(t, o).of(openTest(t, o))
	ns, other := openNamespace(t, s, "m"), openNamespace(t, s, "other")
	records := chainOf(ns, 1, 3)
	mustWrite(t, s, records)
	dropAll(t, s, records)
	h.on.Store(true)
	go func() { _ = s.journal.Flush() }()
	<-h.hung
	payload := make(chan struct{}, 1)
	d.hook(func(op, path string) error {
		if op == "write" && strings.HasSuffix(path, segment.Suffix) {
			select {
			case payload <- struct{}{}:
			default:
			}
		}
		return nil
	})
	written := make(chan []error, 1)
	go func() { written <- writeAll(t, s, chainOf(other, 1, 1)) }()
	<-payload
	unix.Nanosleep(&unix.Timespec{Nsec: 50e6}, nil)
	h.failing.Store(true)
	generation := s.journal.Generation()
	s.journal.Abandon("test")
	if err := (<-written)[0]; err == nil {
		t.Error("a write was taken by a journal that had failed")
	}
	if err := checkPayload(s, ns, 0, 1000); err != nil {
		t.Error(err)
	}
	h.on.Store(false)
	h.failing.Store(false)
	close(h.release)
	awaitJournal(t, s, generation)
	mustBalance(t, s)
}

// A crash between the end of a namespace and the removal of its manifest leaves the file.
func TestManifestsWithoutNamespaceAreRemoved(t *testing.T) {
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "m"), 1, 3)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(o.Dir, recovery.NamespaceDir, connector.NamespaceDigest{1}.String()+".json")
	if err := os.WriteFile(stray, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if n := manifestFiles(t, o.Dir); n != 1 {
		t.Errorf("%d manifests, want 1", n)
	}
	openNamespace(t, s, "m")
	mustRead(t, s, records)
}

// A namespace that nobody opens, and whose manifest is lost, is in every new journal.
func TestHealingTwiceKeepsNamespacesWithoutManifest(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "m"), 1, 10)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(o.Dir, recovery.NamespaceDir)); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	for range 2 {
		generation := s.journal.Generation()
		s.journal.Abandon("test")
		awaitJournal(t, s, generation)
	}
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(s.opts.Dir, recovery.SnapshotFile))); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	openNamespace(t, s, "m")
	mustRead(t, s, records)
}

// lostJournal returns a disk that lost power and its journal, what was saved on it, and a
// gate: reads of segments wait until it is opened, but for those of their headers at the start.
func lostJournal(t *testing.T) (d *memDisk, records []testRecord, gate *readGate) {
	t.Helper()
	first := newMemDisk()
	s := openTest(t, memOptions(first, newJournalFS()))
	ns := openNamespace(t, s, "m")
	for chain := range 20 {
		records = append(records, chainOf(ns, chain, 10)...)
	}
	mustWrite(t, s, records)
	mustSync(t, s)
	d = first.crash(rand.New(rand.NewPCG(1, 1)), func() {})
	gate = &readGate{open: make(chan struct{})}
	gate.pass.Store(int64(len(s.space.AllSegments())))
	d.hook(gate.before)
	return d, records, gate
}

type readGate struct {
	pass, failed atomic.Int64
	failing      atomic.Bool
	open         chan struct{}
}

func (g *readGate) before(op, path string) error {
	if op != "read" || !strings.HasSuffix(path, segment.Suffix) || g.pass.Add(-1) >= 0 {
		return nil
	}
	<-g.open
	if g.failing.Load() {
		g.failed.Add(1)
		return unix.EIO
	}
	return nil
}

// A disk that gives nothing for a while makes the rebuild wait: no header is taken for lost,
// and no slot for free.
func TestRebuildOutlastsAPassingReadError(t *testing.T) {
	d, records, gate := lostJournal(t)
	o := memOptions(d, newJournalFS())
	s := watchCap(t, o).of(openTest(t, o))
	gate.failing.Store(true)
	close(gate.open)
	for gate.failed.Load() < int64(len(records)) {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	gate.failing.Store(false)
	awaitRebuild(t, s)
	openNamespace(t, s, "m")
	mustRead(t, s, records)
	if n := s.Stats().Rebuild.Damaged; n != 0 {
		t.Errorf("%d headers are called damaged", n)
	}
	mustBalance(t, s)
}

// Subscribers are told of all records that are found, and once, though the journal failed
// while it took them.
func TestFoundRecordsArePublishedThoughTheJournalFails(t *testing.T) {
	t.Parallel()
	d, records, gate := lostJournal(t)
	h := newHungJournal()
	o := memOptions(d, h.under(newJournalFS()))
	s := watchCap(t, o).of(openTest(t, o))
	u, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	if err := u.Snapshot(t.Context(), func(store.Resident) error { return nil }); err != nil {
		t.Fatal(err)
	}
	h.on.Store(true)
	go func() { _ = s.journal.Flush() }()
	<-h.hung
	close(gate.open)
	for s.table.Len() == 0 {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	generation := s.journal.Generation()
	unix.Nanosleep(&unix.Timespec{Nsec: 20e6}, nil)
	h.on.Store(false)
	h.failing.Store(true)
	s.journal.Abandon("test")
	h.failing.Store(false)
	close(h.release)
	awaitJournal(t, s, generation)
	awaitRebuild(t, s)
	told := make(map[store.RecordID]int)
	for n := 0; n < len(records); {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		events, err := u.Next(ctx)
		cancel()
		if err != nil {
			t.Fatalf("%d of %d records: %v", n, len(records), err)
		}
		for _, e := range events {
			if e.Kind == store.EventStored {
				told[e.ID]++
				n++
			}
		}
	}
	if len(told) != len(records) {
		t.Errorf("told of %d records, want %d", len(told), len(records))
	}
	mustBalance(t, s)
}

// The slot of a record that cannot be read stays set aside when the rebuild comes to it.
func TestBadSlotsStayAsideInARebuild(t *testing.T) {
	t.Parallel()
	d, records, gate := lostJournal(t)
	o := memOptions(d, newJournalFS())
	s := watchCap(t, o).of(openTest(t, o))
	g := s.space.AllSegments()[0]
	for slot := range index.Ref(manyBad) {
		s.space.Spoil(g.Base + slot)
		s.space.Spoil(g.Base + slot)
	}
	s.reclaim.WakeShrinker()
	close(gate.open)
	awaitRebuild(t, s)
	if n := s.Stats().Rebuild.Records; n != int64(len(records)-manyBad) {
		t.Errorf("%d records, want %d", n, len(records)-manyBad)
	}
	for s.Stats().Segments > 0 && s.space.AllSegments()[0] == g { // it is given up now
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	mustBalance(t, s)
}

// The journal fails again and again while a rebuild goes on, records are saved and dropped,
// and then the power goes: nothing that was found or made durable is lost.
func TestHealingInTheMiddleOfARebuild(t *testing.T) {
	t.Parallel()
	g := seed.Random(t, 0)
	d, records, gate := lostJournal(t)
	j := newJournalFS()
	o := memOptions(d, j)
	w := watchCap(t, o)
	s := w.of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	for round := range 3 {
		gate.pass.Store(g.Int64N(60))
		records = append(records, writeSome(t, s, chainOf(ns, 100+round, 10))...)
		generation := s.journal.Generation()
		s.journal.Abandon("test")
		awaitJournal(t, s, generation)
	}
	close(gate.open)
	if g.IntN(2) == 0 {
		s.journal.Abandon("test")
	}
	awaitRebuild(t, s)
	for s.Sync(t.Context()) != nil {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
	mustRead(t, s, records)
	mustBalance(t, s)
	var journalAfter *vfs.MemFS
	crashed := d.crash(g, func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	for _, o := range []Options{memOptions(crashed, journalAfter), s.opts} {
		if o.fs == d {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			w.of(nil)
		}
		again := watchCap(t, o).of(openTest(t, o))
		if again.rebuild.State().Segments > 0 {
			t.Error("headers are read once more")
		}
		openNamespace(t, again, "m")
		mustRead(t, again, records)
		mustBalance(t, again)
	}
}

// The power goes after each step of an opening that begins a new journal, and comes back.
func TestCrashAtEachStepOfANewJournal(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	ns := openNamespace(t, s, "m")
	var records []testRecord
	for chain := range 6 {
		records = append(records, chainOf(ns, chain, 10)...)
	}
	mustWrite(t, s, records)
	mustSync(t, s)
	g := seed.Random(t, 0)
	var damaged *vfs.MemFS
	base := d.crash(g, func() { damaged = j.CrashClone(vfs.CrashCloneCfg{}) })
	spoilManifests(t, damaged, memOptions(base, damaged).Dir+"/"+recovery.JournalDir)
	steps := 200
	for step := 0; step < steps; step += 3 {
		var seen, crashes atomic.Int64
		var crashedDisk *memDisk
		var crashedJournal *vfs.MemFS
		fs := damaged.CrashClone(vfs.CrashCloneCfg{})
		copied := base.crash(g, func() {})
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && seen.Add(1) == int64(step+1) {
				crashedDisk = copied.crash(g, func() {
					crashedJournal = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: g.IntN(101), RNG: g})
				})
				crashes.Add(1)
			}
			return nil
		})
		w := watchCap(t, memOptions(copied, fs))
		first, err := Open(t.Context(), memOptions(copied, errorfs.Wrap(fs, inject)))
		if err != nil {
			t.Fatal(err)
		}
		awaitRebuild(t, w.of(first))
		w.of(nil)
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		w.stop()
		if crashes.Load() == 0 {
			steps = step
			break
		}
		again, err := Open(t.Context(), memOptions(crashedDisk, crashedJournal))
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		awaitRebuild(t, again)
		openNamespace(t, again, "m")
		for i, err := range readAll(t, again, records) {
			if err != nil {
				t.Fatalf("step %d: read %d: %v", step, i, err)
			}
		}
		mustBalance(t, again)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d steps", steps)
}

func spoilManifests(t *testing.T, fs *vfs.MemFS, dir string) {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "MANIFEST") {
			continue
		}
		f, err := fs.OpenReadWrite(fs.PathJoin(dir, name), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.WriteAt([]byte("this is no manifest"), 0)
			err = errors.Join(err, f.Sync(), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A segment that takes no new records takes none either when it was to be given up and
// leases kept it.
func TestFrozenSegmentTakesNothingAfterItWasKept(t *testing.T) {
	d := newMemDisk()
	s := openTest(t, memOptions(d, newJournalFS()))
	records := chainOf(openNamespace(t, s, "m"), 1, 10)
	mustWrite(t, s, records)
	mustSync(t, s)
	var journalAfter *vfs.MemFS
	d = d.crash(rand.New(rand.NewPCG(1, 1)), func() { journalAfter = s.opts.journalFS.(*vfs.MemFS).CrashClone(vfs.CrashCloneCfg{}) })
	for path, f := range d.files {
		// A segment made ready may have no header yet.
		if strings.HasSuffix(path, segment.Suffix) && len(f.data) >= fsio.Align {
			clear(f.data[:fsio.Align])
		}
	}
	d.hook(func(op, path string) error {
		if op == "write" && strings.HasSuffix(path, segment.Suffix) {
			return unix.EIO
		}
		return nil
	})
	o := memOptions(d, journalAfter)
	s = watchCap(t, o).of(openTest(t, o))
	d.hook(func(string, string) error { return nil })
	ns := openNamespace(t, s, "m")
	g := s.space.AllSegments()[0]
	if !g.Frozen {
		t.Fatal("the segment is not frozen")
	}
	_, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records), time.Minute)
	if !s.reclaim.Retire(g, nil) {
		t.Fatal("the segment cannot be given up")
	}
	s.evict(&segment.EvictJob{Segment: g, Restore: true})
	mustSync(t, s)
	if st := s.Stats(); st.FreeSlots+st.PendingSlots > 0 {
		t.Errorf("%d slots of it can be written to", st.FreeSlots+st.PendingSlots)
	}
	s.Release(lease)
	checkAccounting(t, s)
	mustRead(t, s, records)
}

// A stamp on a bad sector costs one rebuild from headers, not one at every start; one that only
// cannot be opened now stays where it is.
func TestStampThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		errno unix.Errno
		aside bool
	}{{unix.EIO, true}, {unix.EMFILE, false}} {
		d, o, records := segmentsOnDisk(t)
		stampPath := filepath.Join(o.Dir, recovery.StampFile)
		bad := true
		d.hook(func(op, path string) error {
			if bad && op == "open" && path == stampPath {
				return c.errno
			}
			if op == "rename" && path == stampPath {
				bad = false
			}
			return nil
		})
		for start := range 2 {
			s := openTest(t, o)
			awaitRebuild(t, s)
			if doubted := s.rebuild.State().Segments > 0; doubted != (start == 0 || !c.aside) {
				t.Errorf("%v: start %d: headers are read: %v", c.errno, start, doubted)
			}
			openNamespace(t, s, "m")
			mustRead(t, s, records)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if d.files[stampPath+fsio.AsideSuffix] != nil != c.aside {
			t.Errorf("%v: set aside: %v", c.errno, !c.aside)
		}
	}
}
