package disk

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// Files that could not be measured at a start were taken for nothing, and the cap was passed.
func TestFilesThatCannotBeMeasuredKeepTheStoreFromGrowing(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	w := watchCap(t, o)
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 100)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const aside = "/store/segments/seg-00000777.kv.bad"
	if err := d.WriteFileAtomic(aside, make([]byte, 6<<20)); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	d.hook(func(op, path string) error {
		if op == "measure" && path == aside {
			asked.Add(1)
			return unix.EIO
		}
		return nil
	})
	o.SlotWait = 50 * time.Millisecond
	s = openTest(t, o)
	ns = openNamespace(t, s, "a")
	before := s.Stats().Segments
	for chain := range 40 {
		writeAll(t, s, chainOf(ns, 100+chain, 10))
	}
	st := s.Stats()
	if st.Segments > before || st.Evicted > 0 || asked.Load() == 0 {
		t.Errorf("%d segments, %d before, %d records evicted", st.Segments, before, st.Evicted)
	}
	mustRead(t, s, records)
	d.hook(func(string, string) error { return nil })
	s.reclaim.Measure(false)
	if n := s.Stats().SetAsideBytes; n != 6<<20 {
		t.Errorf("%d bytes set aside", n)
	}
	w.of(s)
	for chain := range 40 {
		writeUntilDone(t, s, chainOf(ns, 200+chain, 10))
	}
	settle(t, s)
	checkAccounting(t, s)
}

// What stays unmeasured for good does not end all saves.
func TestWhatCanNeverBeMeasuredDoesNotEndSaves(t *testing.T) {
	d := newMemDisk()
	d.hook(func(op, path string) error {
		if op == "measure" && strings.HasSuffix(path, recovery.NamespaceDir) {
			return unix.EIO
		}
		return nil
	})
	s := openTest(t, memOptions(d, newJournalFS()))
	for range 30 {
		s.reclaim.Measure(false)
	}
	mustWrite(t, s, chainOf(openNamespace(t, s, "a"), 1, 10))
}

// A store that does not know how much space is free makes no segment: others may need it. The
// first answer says how much must stay free.
func TestNothingIsMadeWhileFreeSpaceIsUnknown(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	d.total = 128 << 20
	d.fill(90 << 20) // less than a quarter is left, which must stay free
	for _, errno := range []unix.Errno{unix.EIO, unix.ENOSPC} {
		d.hook(func(op, _ string) error {
			if op == "statfs" {
				return errno
			}
			return nil
		})
		o := memOptions(d, newJournalFS())
		o.SlotWait = 50 * time.Millisecond
		s := openTest(t, o)
		ns := openNamespace(t, s, "a")
		if err := writeAll(t, s, chainOf(ns, 1, 1))[0]; !errors.Is(err, store.ErrBusy) {
			t.Errorf("%v: a save ended with %v", errno, err)
		}
		d.hook(func(string, string) error { return nil })
		s.reclaim.Measure(false)
		if st := s.Stats(); st.Segments != 0 || st.MinFreeBytes != 32<<20 {
			t.Errorf("%v: %d segments, %d bytes must stay free", errno, st.Segments, st.MinFreeBytes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// An error of the question how much is free is no answer, whatever it is called: no record goes
// for it.
func TestAQuestionForFreeSpaceThatFailsEvictsNothing(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	o.SlotWait = 100 * time.Millisecond
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	writeUntilDone(t, s, chainOf(ns, 1, 60))
	d.hook(func(op, _ string) error {
		if op == "statfs" {
			return unix.ENOSPC
		}
		return nil
	})
	failed := 0
	for chain := range 10 {
		for _, err := range writeAll(t, s, chainOf(ns, 10+chain, 10)) {
			if err != nil {
				failed++
			}
		}
	}
	if n := s.Stats().Evicted; n > 0 || failed == 0 {
		t.Errorf("%d records were evicted, %d saves failed", n, failed)
	}
	d.hook(func(string, string) error { return nil })
	for chain := range 10 {
		writeUntilDone(t, s, chainOf(ns, 10+chain, 10))
	}
	if n := s.Stats().Evicted; n > 0 {
		t.Errorf("%d records were evicted", n)
	}
}

// A start at which neither the store nor the file system can be measured finds no cap. It is
// refused, and costs nothing.
func TestStartWithoutAnyMeasureIsRefused(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	d.total = 1 << 30
	o := memOptions(d, j)
	o.MaxBytes, o.MinFreeBytes = 0, 1<<20
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "a"), 1, 40)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	first := d.segmentPaths()[0]
	d.hook(func(op, path string) error {
		if op == "measure" || op == "statfs" || op == "open" && path == first {
			return unix.EIO
		}
		return nil
	})
	if s, err := Open(t.Context(), o); err == nil {
		t.Errorf("opened with a cap of %d", s.Stats().MaxBytes)
		_ = s.Close()
	}
	d.hook(func(string, string) error { return nil })
	s = openTest(t, o)
	openNamespace(t, s, "a")
	mustRead(t, s, records)
}

// The journal's size is not known at a stop: no snapshot is written, which costs a moment at the
// next start and no record.
func TestStopThatCannotMeasureTheJournalWritesNoSnapshot(t *testing.T) {
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	s := openTest(t, o)
	records := chainOf(openNamespace(t, s, "a"), 1, 40)
	mustWrite(t, s, records)
	d.hook(func(op, path string) error {
		if op == "measure" && strings.HasSuffix(path, recovery.JournalDir) {
			return unix.EIO
		}
		return nil
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d.hook(func(string, string) error { return nil })
	s = openTest(t, o)
	if s.Stats().Recovered != recovery.RecoveredJournal {
		t.Errorf("recovered from the %s", s.Stats().Recovered)
	}
	openNamespace(t, s, "a")
	mustRead(t, s, records)
}

// withLostFound is a disk whose root holds a directory that the store may not look into, which a
// walk over the root passes by.
func withLostFound(t *testing.T, d *memDisk, lost string) {
	t.Helper()
	if err := d.MkdirAll(lost); err != nil {
		t.Fatal(err)
	}
	d.hook(func(op, path string) error {
		if op == "measure" && path == lost {
			return unix.EACCES
		}
		return nil
	})
}

// A store whose directory is the root of a file system finds lost+found in it, which is root's.
// It is measured for what it is, grows at once, and has nothing to warn of.
func TestADirectoryOfOthersDoesNotKeepTheStoreFromGrowing(t *testing.T) {
	d := newMemDisk()
	withLostFound(t, d, "/store/lost+found")
	other := make([]byte, 300<<10)
	if err := d.WriteFileAtomic("/store/other", other); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, memOptions(d, newJournalFS()))
	if st := s.Stats(); len(st.Warnings) > 0 {
		t.Errorf("warnings: %q", st.Warnings)
	}
	if u := s.space.Usage(); u.Unmeasured > 0 || u.SmallBytes < int64(len(other)) {
		t.Errorf("does not grow for %d measurements, %d bytes of small files", u.Unmeasured, u.SmallBytes)
	}
	mustWrite(t, s, chainOf(openNamespace(t, s, "a"), 1, 10))
}

// One file that cannot be measured does not hide what the others occupy.
func TestAFileThatCannotBeMeasuredHidesNoOther(t *testing.T) {
	d := newMemDisk()
	for _, name := range []string{"a", "b", "c"} {
		if err := d.WriteFileAtomic("/store/"+name, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	d.hook(func(op, path string) error {
		if op == "measure" && path == "/store/b" {
			return unix.EIO
		}
		return nil
	})
	s := openTest(t, memOptions(d, newJournalFS()))
	if u := s.space.Usage(); u.SmallBytes != 2<<20 || u.Unmeasured == 0 {
		t.Errorf("%d bytes of small files, %d measurements without growth", u.SmallBytes, u.Unmeasured)
	}
}

// A file that was set aside and could not be measured for long counts when it can: the cap holds
// for it, too, and what the store makes meanwhile is counted once.
func TestWhatCanBeMeasuredLateCounts(t *testing.T) {
	const aside = "/store/segments/seg-00000777.kv.bad"
	d := newMemDisk()
	if err := d.WriteFileAtomic(aside, make([]byte, 6<<20)); err != nil {
		t.Fatal(err)
	}
	d.hook(func(op, path string) error {
		if op == "measure" && path == aside {
			return unix.EIO
		}
		return nil
	})
	s := openTest(t, memOptions(d, newJournalFS()))
	for range 30 {
		s.reclaim.Measure(false)
	}
	mustWrite(t, s, chainOf(openNamespace(t, s, "a"), 1, 10)) // while a segment is made
	making := "/store/segments/seg-00009999.kv"               // and one more is being made
	if err := d.WriteFileAtomic(making, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	d.hook(func(string, string) error { return nil })
	s.reclaim.Measure(true)
	if n := s.Stats().SetAsideBytes; n != 6<<20 {
		t.Errorf("%d bytes set aside", n)
	}
	if err := d.Remove(making); err != nil {
		t.Fatal(err)
	}
	settle(t, s)
	checkAccounting(t, s)
}

// A store that cannot be measured has a cap all the same: that of one that has the file system for
// itself, which is no smaller than the right one, so that no record goes for it.
func TestCapOfAStoreThatCannotBeMeasured(t *testing.T) {
	t.Parallel()
	for _, others := range []int64{0, 32 << 20} {
		d, j := newMemDisk(), newJournalFS()
		d.total = 128 << 20
		d.fill(others)
		o := memOptions(d, j)
		o.MaxBytes, o.MinFreeBytes = 0, -1
		s := openTest(t, o)
		ns := openNamespace(t, s, "a")
		for chain := range 60 {
			mustWrite(t, s, ofSize(ns, chain+1, 2, 1<<20))
		}
		settle(t, s)
		right := s.Stats().MaxBytes
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openTest(t, o) // some records may have been evicted before the stop
		records := s.Stats().Records
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		first := d.segmentPaths()[0]
		d.hook(func(op, path string) error {
			if op == "measure" && path == "/store" || op == "open" && path == first {
				return unix.EIO
			}
			return nil
		})
		s = openTest(t, o)
		d.hook(func(string, string) error { return nil })
		awaitSegments(t, s)
		if st := s.Stats(); st.MaxBytes < right || st.MaxBytes > 128<<20/5*4 || st.Records < records { // headers may tell of some that were evicted
			t.Errorf("a cap of %d, the right one is %d; %d of %d records", st.MaxBytes, right, st.Records, records)
		}
	}
}
