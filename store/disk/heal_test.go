package disk

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/journal"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// awaitJournal waits until the journal works in a generation after that one.
func awaitJournal(t *testing.T, s *Store, generation uint64) {
	t.Helper()
	for t.Context().Err() == nil {
		if s.journal.Generation() > generation && s.Sync(t.Context()) == nil && s.journal.Flush() == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("journal does not work again")
}

// mustBalance checks that every slot is accounted for once.
func mustBalance(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkAccounting(t, s)
	f := &fsck{s: s, report: &FsckReport{}}
	if damaged, err := f.checkJournal(t.Context()); damaged != nil || err != nil || len(f.report.Failed) > 0 {
		t.Errorf("%v, %v, %v", f.report.Failed, damaged, err)
	}
}

// writeSome writes records and returns those that were taken: some may be refused.
func writeSome(t *testing.T, s *Store, records []testRecord) (taken []testRecord) {
	t.Helper()
	for i, err := range writeAll(t, s, records) {
		if err == nil {
			taken = append(taken, records[i])
		}
	}
	return taken
}

// TestJournalHeals is defect 10: whichever operation of the journal's file system fails, once
// or for a while, saving works again without a restart, and nothing that was durable is lost,
// neither by a clean stop nor by a crash.
func TestJournalHeals(t *testing.T) {
	t.Parallel()
	faults := []error{unix.EIO, unix.ENOSPC, unix.EMFILE}
	first := seed.Of(t)
	part := int64(1) // the next n is larger by this part of it
	if longTest() {
		part = 3
	}
	for n := int64(0); n < 60; n += 1 + n/part {
		for i, fault := range faults {
			journalHeals(t, rand.New(rand.NewPCG(first, uint64(n))), n, fault, i == int(n)%len(faults))
		}
	}
}

func journalHeals(t *testing.T, g *rand.Rand, n int64, fault error, lasting bool) {
	var on atomic.Bool
	var seen atomic.Int64
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		if k := seen.Add(1); k == n+1 || lasting && k > n {
			return &os.PathError{Op: "test", Path: op.Path, Err: fault}
		}
		return nil
	})
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, errorfs.Wrap(j, inject))
	w := watchCap(t, memOptions(d, j)) // looks past the faults
	defer w.stop()
	s := w.of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	before := chainOf(ns, 1, 10)
	mustWrite(t, s, before)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	on.Store(true)
	during := writeSome(t, s, chainOf(ns, 2, 10))
	_ = s.Sync(t.Context())
	_ = s.journal.Flush()
	during = append(during, writeSome(t, s, chainOf(ns, 3, 10))...)
	_ = s.Sync(t.Context())
	mustRead(t, s, before)
	on.Store(false)
	awaitJournal(t, s, 0)
	after := chainOf(ns, 4, 10)
	mustWrite(t, s, after)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatalf("operation %d, %v: %v", n, fault, err)
	}
	all := append(append(append([]testRecord(nil), before...), during...), after...)
	mustRead(t, s, all)
	mustBalance(t, s)
	var journalAfter *vfs.MemFS
	crashed := d.crash(g, func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	for _, o := range []Options{memOptions(crashed, journalAfter), o} {
		if o.fs == d {
			if err := s.Close(); err != nil {
				t.Fatalf("operation %d, %v: %v", n, fault, err)
			}
			w.of(nil)
		}
		w := watchCap(t, o)
		again := w.of(openTest(t, o))
		openNamespace(t, again, "m")
		mustRead(t, again, all)
		mustBalance(t, again)
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
		w.stop()
	}
}

// TestHealingKeepsScopes: what is not in the index comes from the journal that failed, or
// from the headers where that cannot be read.
func TestHealingKeepsScopes(t *testing.T) {
	t.Parallel()
	want := connector.Scope{Salt: "tenant"}.Digest()
	for _, readable := range []bool{true, false} {
		d := newMemDisk()
		o := memOptions(d, newJournalFS())
		s := watchCap(t, o).of(openTest(t, o))
		records := chainOf(openNamespace(t, s, "m"), 1, 20)
		for i := range records {
			r := &records[i]
			op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Scope: want, Payload: r.payload()}
			done := make(chan struct{})
			if _, err := s.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(done) }); err != nil {
				t.Fatal(err)
			}
			<-done
		}
		if !readable {
			// Entries that do not fit the index are of no use.
			b := s.journal.NewBatch()
			for i := range records {
				found, _ := s.table.Get(internalID(s, records[i].ID), false)
				if err := b.DeleteRecord(s.space.At(found.Ref).Location(found.Ref)); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		generation := s.journal.Generation()
		s.journal.Abandon("test")
		awaitJournal(t, s, generation)
		n := 0
		err := s.journal.Records(0, 1<<32-1, func(r *journal.Record) error {
			n++
			if r.Scope != want || keyOf(1, int(r.Depth)) != r.Key || r.Depth > 0 && keyOf(1, int(r.Depth)-1) != r.Parent {
				t.Errorf("%+v", r)
			}
			return nil
		}, func(err error) { t.Error(err) })
		if err != nil || n != len(records) {
			t.Errorf("%d records, %v", n, err)
		}
	}
}

// TestEventsAndSlotsAfterHealing: records dropped while there is no journal are gone from
// the next one, their slots are used again, and a subscriber sees the same.
func TestEventsAndSlotsAfterHealing(t *testing.T) {
	o := testOptions(t.TempDir())
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 20)
	mustWrite(t, s, records)
	old, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	generation := s.journal.Generation()
	s.journal.Abandon("test")
	dropAll(t, s, records[10:])
	if _, err := s.Subscribe(t.Context()); err == nil && s.journal.Generation() == generation {
		t.Error("subscribed to a failed journal")
	}
	awaitJournal(t, s, generation)
	mustBalance(t, s)
	mustWrite(t, s, chainOf(ns, 2, 5))
	u, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := u.Snapshot(t.Context(), func(store.Resident) error { n++; return nil }); err != nil || n != 15 {
		t.Errorf("%d records, %v; want 15", n, err)
	}
	if err := old.Snapshot(t.Context(), func(store.Resident) error { return nil }); err != nil && !errors.Is(err, journal.ErrFailed) {
		t.Errorf("snapshot of the old journal: %v", err)
	}
	events, err := old.Next(t.Context())
	if err != nil || len(events) != 15 {
		t.Errorf("%d events, %v; want 15", len(events), err)
	}
	if err := errors.Join(old.Close(), u.Close()); err != nil {
		t.Error(err)
	}
}

// TestCorruptTableIsHealed flips a bit in a table of a journal that is open.
func TestCorruptTableIsHealed(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	o.JournalCacheBytes = 1 << 10
	w := watchCap(t, o)
	s := w.of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	all := chainOf(ns, 1, 100)
	mustWrite(t, s, all)
	if err := errors.Join(s.Sync(t.Context()), s.journal.Flush()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(o.Dir, recovery.JournalDir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatal(tables, err)
	}
	for _, path := range tables {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(b)-200; i += 50 {
			b[i] ^= 4
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt(b, 0)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	generation := s.journal.Generation()
	// Somebody reads it.
	_ = s.journal.Records(0, 1<<32-1, func(*journal.Record) error { return nil }, func(error) {})
	select {
	case <-s.journal.Failed():
	case <-time.After(time.Minute):
		t.Fatal("corruption was not noticed")
	}
	awaitJournal(t, s, generation)
	more := chainOf(ns, 2, 10)
	mustWrite(t, s, more)
	mustBalance(t, s)
	if err := errors.Join(s.Close(), os.Remove(filepath.Join(s.opts.Dir, recovery.SnapshotFile))); err != nil {
		t.Fatal(err)
	}
	again := w.of(openTest(t, o))
	openNamespace(t, again, "m")
	mustRead(t, again, append(all, more...))
}

// descriptorsEnv makes the test binary the child of TestNoDescriptorsForAWhile.
const descriptorsEnv = "KVCONN_STORE_TEST_DESCRIPTORS"

// TestNoDescriptorsForAWhile is defect 10 as it happened: all descriptors of the process are
// taken for a while.
func TestNoDescriptorsForAWhile(t *testing.T) {
	if os.Getenv(descriptorsEnv) != "" {
		withoutDescriptors(t)
		return
	}
	c := exec.Command(os.Args[0], "-test.run=^TestNoDescriptorsForAWhile$", "-test.count=1")
	c.Env = append(os.Environ(), descriptorsEnv+"=1")
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "PASS") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func withoutDescriptors(t *testing.T) {
	limit := unix.Rlimit{Cur: 200, Max: 200}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t.TempDir())
	w := watchCap(t, o)
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.of(s)
	ns := openNamespace(t, s, "m")
	all := chainOf(ns, 1, 10)
	mustWrite(t, s, all)
	var taken []*os.File
	for failed := false; !failed; {
		for {
			f, err := os.Open("/dev/null")
			if err != nil {
				break
			}
			taken = append(taken, f)
		}
		_ = s.journal.Flush() // needs a descriptor, and may find one that was let go of meanwhile
		select {
		case <-s.journal.Failed():
			failed = true
		default:
		}
	}
	all = append(all, writeSome(t, s, chainOf(ns, 2, 10))...)
	_ = s.Sync(t.Context())
	mustRead(t, s, all)
	for _, f := range taken {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	awaitJournal(t, s, 0)
	more := chainOf(ns, 3, 10)
	mustWrite(t, s, more)
	mustBalance(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = w.of(openTest(t, o))
	openNamespace(t, s, "m")
	mustRead(t, s, append(all, more...))
}

// TestCloseEndsWhereTheDiskDoesNotAnswer: neither a barrier nor a commit that hangs keeps
// the process.
func TestCloseEndsWhereTheDiskDoesNotAnswer(t *testing.T) {
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	o.CloseWait = 20 * time.Millisecond
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ns := openNamespace(t, s, "m")
	hold := make(chan struct{})
	d.hook(func(op, _ string) error {
		if op == "sync" {
			<-hold
		}
		return nil
	})
	op := chainOf(ns, 1, 1)[0]
	done := make(chan struct{})
	if _, err := s.Write([]*store.WriteOp{{Record: store.Record{ID: op.ID}, Payload: op.payload()}}, func(*store.WriteOp) { close(done) }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("%v", err)
	}
	close(hold)
	<-done
}
