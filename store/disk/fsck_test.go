package disk

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// stoppedStore returns the options of a store that holds n records and was stopped, and
// the path of the segment that holds record i at the offset returned by at.
func stoppedStore(t *testing.T, n int) (o Options, records []testRecord, at func(i int) (string, int64)) {
	t.Helper()
	o = testOptions(t.TempDir())
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records = chainOf(ns, 1, n)
	mustWrite(t, s, records)
	places := make([]struct {
		path   string
		offset int64
	}, n)
	for i := range records {
		f, _ := s.table.Get(internalID(s, records[i].ID), false)
		g := s.space.At(f.Ref)
		places[i].path, places[i].offset = g.Path, g.Offset(uint32(f.Ref-g.Base))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return o, records, func(i int) (string, int64) { return places[i].path, places[i].offset }
}

func runFsck(t *testing.T, o Options, payload bool) FsckReport {
	t.Helper()
	var last, total int64
	r, err := Fsck(context.Background(), o.Dir, FsckOptions{Payload: payload, Store: o, Progress: func(done, all int64) { last, total = done, all }})
	if err != nil {
		t.Fatal(err)
	}
	if last != total {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	return r
}

// cached is a file system without direct I/O.
type cached struct{ fsio.OS }

func (f cached) OpenFile(path string, create, direct bool) (fsio.File, error) {
	if direct {
		return nil, fsio.ErrNoDirectIO
	}
	return f.OS.OpenFile(path, create, direct)
}

// A file system that is slow is no damage: fsck would find it each time.
func TestFsckTakesNoSlowFileSystemForDamage(t *testing.T) {
	o, _, _ := stoppedStore(t, 5)
	if r := runFsck(t, o.WithFS(cached{}, vfs.Default), true); !r.Clean() || r.Records != 5 {
		t.Errorf("%+v", r)
	}
}

func TestFsckOfAnIntactStoreFindsNothing(t *testing.T) {
	o, records, _ := stoppedStore(t, 50)
	for _, payload := range []bool{false, true} {
		if r := runFsck(t, o, payload); !r.Clean() || r.Records != 50 || r.Recovered != recovery.RecoveredSnapshot {
			t.Errorf("%+v", r)
		}
	}
	mustRead(t, openTest(t, o), records)
}

func TestFsckDropsExactlyWhatIsDamaged(t *testing.T) {
	o, records, at := stoppedStore(t, 50)
	path, offset := at(10)
	if err := flipBit(path, offset+100, 1); err != nil {
		t.Fatal(err)
	}
	path, offset = at(20)
	if err := flipBit(path, offset+4096+5000, 1); err != nil {
		t.Fatal(err)
	}
	r := runFsck(t, o, false)
	if len(r.Dropped) != 1 || r.Dropped[0].Key != records[10].ID.Key.String() {
		t.Errorf("headers: %+v", r)
	}
	r = runFsck(t, o, true)
	if len(r.Dropped) != 1 || r.Dropped[0].Key != records[20].ID.Key.String() || r.Records != 48 {
		t.Errorf("payloads: %+v", r)
	}
	if r = runFsck(t, o, true); !r.Clean() {
		t.Errorf("second time: %+v", r)
	}
	s := openTest(t, o)
	for i, err := range readAll(t, s, records) {
		if gone := i == 10 || i == 20; gone != errors.Is(err, store.ErrGone) || !gone && err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
}

func TestDamagedSegmentHeaderIsRepaired(t *testing.T) {
	t.Parallel()
	for _, loseJournal := range []bool{false, true} {
		o, records, at := stoppedStore(t, 50)
		path, _ := at(0)
		if err := flipBit(path, 40, 2); err != nil {
			t.Fatal(err)
		}
		// The first record's header too: the next one tells as much.
		if err := flipBit(path, 4096+90, 2); err != nil {
			t.Fatal(err)
		}
		if loseJournal {
			if err := os.RemoveAll(filepath.Join(o.Dir, recovery.JournalDir)); err != nil {
				t.Fatal(err)
			}
		}
		r := runFsck(t, o, true)
		if len(r.Failed) > 0 || r.Records != 49 || len(r.Repaired) == 0 {
			t.Errorf("journal lost %v: %+v", loseJournal, r)
		}
		if r = runFsck(t, o, true); !r.Clean() {
			t.Errorf("journal lost %v: second time: %+v", loseJournal, r)
		}
		s := openTest(t, o)
		bad := 0
		for _, err := range readAll(t, s, records) {
			if err != nil {
				bad++
			}
		}
		if bad != 1 {
			t.Errorf("journal lost %v: %d records cannot be read", loseJournal, bad)
		}
	}
}

func TestSegmentFileThatIsGoneCostsItsRecordsOnly(t *testing.T) {
	o, records, at := stoppedStore(t, 50)
	path, _ := at(0)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, o)
	for i, err := range readAll(t, s, records) {
		p, _ := at(i)
		if (p == path) != errors.Is(err, store.ErrGone) || p != path && err != nil {
			t.Errorf("record %d in %s: %v", i, p, err)
		}
	}
	checkAccounting(t, s)
	if w := strings.Join(s.Stats().Warnings, "; "); !strings.Contains(w, "is gone") {
		t.Errorf("warnings %q", w)
	}
}

func TestLostFormatFileIsMadeAgain(t *testing.T) {
	o, records, _ := stoppedStore(t, 20)
	if err := os.Remove(filepath.Join(o.Dir, recovery.FormatFile)); err != nil {
		t.Fatal(err)
	}
	mustRead(t, openTest(t, o), records)
}

func TestScrubFindsWhatNoOneReads(t *testing.T) {
	o, records, at := stoppedStore(t, 20)
	path, offset := at(5)
	if err := flipBit(path, offset+4096+77, 1); err != nil {
		t.Fatal(err)
	}
	o.ScrubBytesPerS = 1 << 40
	s := openTest(t, o)
	for s.Stats().Scrubs == 0 {
		time.Sleep(time.Millisecond)
	}
	if st := s.Stats(); st.Corrupt != 1 || st.Records != 19 || isPresent(s, records[5].ID) {
		t.Errorf("%d corrupt, %d records", st.Corrupt, st.Records)
	}
}

func TestSmallerCapKeepsWhatFits(t *testing.T) {
	o, records, _ := stoppedStore(t, 300)
	o.MaxBytes = 10 << 20
	s := openTest(t, o)
	st := s.Stats()
	if st.PhysicalBytes > o.MaxBytes || st.Records == 0 || st.SegmentBytes < 4<<20 {
		t.Errorf("%d records in %d bytes of %d", st.Records, st.PhysicalBytes, o.MaxBytes)
	}
	physical, err := s.opts.fs.PhysicalBytes(o.Dir)
	if err != nil || physical > o.MaxBytes {
		t.Errorf("%d bytes on disk: %v", physical, err)
	}
	before := st.Records
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.MaxBytes = 64 << 20
	s = openTest(t, o)
	if st := s.Stats(); st.Records != before {
		t.Errorf("%d records with a larger cap, %d before", st.Records, before)
	}
	_ = records
}

func TestCalibrationIsKeptAndShown(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 512 << 20
	o.Calibrate = true
	s := openTest(t, o)
	first := s.Stats()
	if first.Calibration == nil || first.ReadBudgetBytes != first.Calibration.ReadInFlightBytes || len(first.Calibration.Measured) < 2 {
		t.Fatalf("%+v", first.Calibration)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.Calibrate = false
	s = openTest(t, o)
	if again := s.Stats(); again.Calibration == nil || !again.Calibration.At.Equal(first.Calibration.At) {
		t.Errorf("%+v", again.Calibration)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.ReadInFlightBytes = 1 << 20
	if st := openTest(t, o).Stats(); st.ReadBudgetBytes != 1<<20 {
		t.Errorf("budget %d, was set to 1 MiB", st.ReadBudgetBytes)
	}
}

// lockWatch counts the holders of the directory's lock.
type lockWatch struct {
	fsio.OS
	held atomic.Int64
}

func (w *lockWatch) Lock(path, holder string) (io.Closer, error) {
	c, err := w.OS.Lock(path, holder)
	if err != nil {
		return nil, err
	}
	w.held.Add(1)
	return &watchedLock{c, w}, nil
}

type watchedLock struct {
	io.Closer
	w *lockWatch
}

func (l *watchedLock) Close() error {
	l.w.held.Add(-1)
	return l.Closer.Close()
}

// Fsck let go of the directory before it made a damaged journal again: a daemon that was started
// at that moment lost its own.
func TestFsckHoldsTheDirectoryWhileItMakesTheJournalAgain(t *testing.T) {
	o, records := killedStore(t, testOptions(""), 40)
	if err := openTest(t, o).Close(); err != nil {
		t.Fatal(err)
	}
	damageTables(t, o.Dir)
	w := new(lockWatch)
	var unlocked atomic.Int64
	watched := o
	watched.fs = w
	watched.journalFS = errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && op.Kind != errorfs.OpFileClose && w.held.Load() == 0 {
			unlocked.Add(1)
		}
		return nil
	}))
	r, err := Fsck(t.Context(), o.Dir, FsckOptions{Store: watched})
	if err != nil || len(r.Failed) > 0 || len(r.Repaired) == 0 || r.Records != int64(len(records)) {
		t.Errorf("%+v, %v", r, err)
	}
	if n := unlocked.Load(); n > 0 {
		t.Errorf("%d operations on the journal of a directory that nobody held", n)
	}
	if n := w.held.Load(); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	mustRead(t, openTest(t, o), records)
}
