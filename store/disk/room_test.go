package disk

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// Defect 15: a record that can never fit gave up every other segment.
func TestRecordThatNeverFitsIsRefusedAtOnce(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	a, b := openNamespace(t, s, "a"), openNamespace(t, s, "b")
	mustWrite(t, s, chainOf(a, 1, 300))
	before := s.Stats().Records
	err := writeAll(t, s, ofSize(b, 1, 1, 15<<20))[0]
	if !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("error %v", err)
	}
	if st := s.Stats(); st.Records != before || st.Evicted != 0 {
		t.Errorf("%d of %d records are left", st.Records, before)
	}
	mustWrite(t, s, ofSize(b, 2, 2, otherPayload)) // the refused size is not that of the namespace
}

// fullStore makes a store on a real disk that is full to its cap, and closes it.
func fullStore(t *testing.T, capBytes int64) Options {
	t.Helper()
	o := testOptions(t.TempDir())
	o.MaxBytes = capBytes
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := 0; s.Stats().Evicted == 0; chain++ {
		mustWrite(t, s, ofSize(ns, chain, 10, 4<<20))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return o
}

// Defect 21: the calibration's file passed the cap of a full store, and stayed after
// kill -9.
func TestCalibrationStaysWithinTheCap(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 260 MB")
	}
	o := fullStore(t, 260<<20)
	orphan := filepath.Join(o.Dir, recovery.SegmentDir, recovery.CalibrationScratch)
	if err := os.WriteFile(orphan, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	o.Calibrate = true
	w := watchCap(t, o)
	w.of(openTest(t, o))
	if _, err := os.Stat(orphan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of an earlier calibration: %v", err)
	}
}

// Defect 23, the cap: manifests are counted.
func TestManifestsCountUnderTheCap(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	for chain := range 30 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	refused := 0
	for i := range 100 {
		ns := openNamespace(t, s, strings.Repeat("m", 60<<10+i))
		err := writeAll(t, s, chainOf(ns, i, 1))[0]
		s.CloseNamespace(ns)
		switch {
		case errors.Is(err, store.ErrTooLarge):
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if st := s.Stats(); refused == 0 || st.Records < 100 {
		t.Errorf("%d manifests of 60 KiB refused under a cap of %d, %d records left", refused, st.MaxBytes, st.Records)
	}
}

// noMeasure is a disk that does not say what a directory occupies, or how much is free.
type noMeasure struct {
	*memDisk
	own, free atomic.Bool
}

func (d *noMeasure) PhysicalBytes(path string) (int64, error) {
	if d.own.Load() {
		return 0, unix.EIO
	}
	return d.memDisk.PhysicalBytes(path)
}

func (d *noMeasure) Room(path string) (fsio.Room, error) {
	if d.free.Load() {
		return fsio.Room{}, unix.EIO
	}
	return d.memDisk.Room(path)
}

// A start that could not measure the directory, or the file system, made a cap of what was
// left and evicted the cache for it.
func TestWhatCannotBeMeasuredCostsNoRecord(t *testing.T) {
	t.Parallel()
	d, j := &noMeasure{memDisk: newMemDisk()}, newJournalFS()
	d.total = 1 << 30
	o := memOptions(d.memDisk, j)
	o.fs, o.MaxBytes, o.MinFreeBytes = d, 0, 1<<20
	s := openTest(t, o)
	mustWrite(t, s, ofSize(openNamespace(t, s, "a"), 1, 40, 4<<20))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d.memDisk.mu.Lock()
	left := d.total - d.used()
	d.memDisk.mu.Unlock()
	d.fill(left - 60<<20)
	for _, broken := range []*atomic.Bool{&d.own, &d.free} {
		broken.Store(true)
		s := openTest(t, o)
		if st := s.Stats(); st.Records != 40 || st.RetiringSegments != 0 {
			t.Errorf("%d of 40 records under a cap of %d from %q", st.Records, st.MaxBytes, st.CapSource)
		}
		broken.Store(false)
		s.reclaim.Measure(false)
		if st := s.Stats(); st.Records != 40 || st.MinFreeBytes != 1<<20 {
			t.Errorf("%d of 40 records, %d bytes stay free", st.Records, st.MinFreeBytes)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Defect 24: a snapshot of a store whose cap had become smaller passed it.
func TestSnapshotOfALargerPastStaysWithinTheCap(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.MaxBytes = 400 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, ofSize(ns, 1, 100, 1000))
	const past = 1 << 18 // slots that the store had and gave up
	base, err := s.table.AddSlots(past)
	if err != nil {
		t.Fatal(err)
	}
	s.table.DropSlots(base, past)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.MaxBytes = MinMaxBytes
	recovered := []recovery.Recovery{}
	for range 3 {
		s = openTest(t, o)
		w := watchCap(t, o)
		recovered = append(recovered, s.state.Recovered)
		ns = openNamespace(t, s, "a")
		mustWrite(t, s, ofSize(ns, 1000, 10, 1000))
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		w.stop()
	}
	if recovered[2] != recovery.RecoveredSnapshot {
		t.Errorf("recovered from %v", recovered)
	}
}

// The file system of a store that others use, too.
func sharedDisk(t *testing.T, change func(*Options)) (*memDisk, *Store) {
	t.Helper()
	d, j := newMemDisk(), newJournalFS()
	d.total = 128 << 20
	o := memOptions(d, j)
	o.MaxBytes, o.MinFreeBytes = 64<<20, 32<<20
	if change != nil {
		change(&o)
	}
	return d, watchCap(t, o).of(openTest(t, o))
}

// B1: the store filled the file system to its last byte.
func TestMinFreeIsKept(t *testing.T) {
	t.Parallel()
	d, s := sharedDisk(t, nil)
	ns := openNamespace(t, s, "a")
	d.fill(70 << 20) // leaves 26 MiB to the store
	for chain := range 100 {
		for i, err := range writeAll(t, s, chainOf(ns, chain, 20)) {
			if err != nil {
				t.Fatalf("chain %d, record %d: %v", chain, i, err)
			}
		}
		if room, _ := d.Room("/"); room.FreeBytes < s.opts.MinFreeBytes {
			t.Fatalf("%d bytes are free, %d must be", room.FreeBytes, s.opts.MinFreeBytes)
		}
	}
	// Now and then more is given back than was needed, and the next writes take it.
	s.reclaim.Measure(false)
	st := s.Stats()
	for chain := 100; chain < 200 && st.LimitedBy != LimitedByFree; chain++ {
		mustWrite(t, s, chainOf(ns, chain, 20))
		s.reclaim.Measure(false)
		st = s.Stats()
	}
	if st.LimitedBy != LimitedByFree || st.EffectiveMaxBytes >= st.MaxBytes || st.Evicted == 0 || st.Records < 300 {
		t.Errorf("limited by %q, can become %d, %d evicted, %d records", st.LimitedBy, st.EffectiveMaxBytes, st.Evicted, st.Records)
	}
	// Others take more: segments are given back, the coldest first.
	d.fill(80 << 20)
	for range 10_000 {
		if room, _ := d.Room("/"); room.FreeBytes >= s.opts.MinFreeBytes {
			break
		}
		time.Sleep(time.Millisecond)
	}
	settle(t, s)
	s.reclaim.Measure(false)
	st = s.Stats()
	if free := st.EffectiveMaxBytes - st.PhysicalBytes; free < 0 || free > st.MinFreeBytes/16+2<<20 {
		t.Errorf("%d bytes may be taken, want few", free)
	}
	if n := s.Stats().Records; n < 100 {
		t.Errorf("%d records are left", n)
	}
	// And when they have gone, the store grows again.
	d.fill(0)
	for range 10_000 {
		if s.Stats().LimitedBy == "" {
			break
		}
		time.Sleep(time.Millisecond)
	}
	before := s.Stats().Segments
	for chain := 200; chain < 240; chain++ {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	if after := s.Stats().Segments; after <= before {
		t.Errorf("%d segments, %d before there was room", after, before)
	}
	settle(t, s)
	checkAccounting(t, s)
}

// Another payload size gets its segments below min_free by way of those of the first.
func TestMinFreeLeavesRoomForAnotherSize(t *testing.T) {
	d, s := sharedDisk(t, nil)
	d.fill(76 << 20)
	a, b := openNamespace(t, s, "a"), openNamespace(t, s, "b")
	for chain := range 60 {
		mustWrite(t, s, chainOf(a, chain, 20))
	}
	for chain := range 20 {
		writeUntilDone(t, s, ofSize(b, chain, 10, otherPayload))
		if room, _ := d.Room("/"); room.FreeBytes < s.opts.MinFreeBytes {
			t.Fatalf("%d bytes are free, %d must be", room.FreeBytes, s.opts.MinFreeBytes)
		}
	}
	settle(t, s)
	checkAccounting(t, s)
}

func TestSavesAreRefusedWhereNothingMayGrow(t *testing.T) {
	d, s := sharedDisk(t, nil)
	d.fill(100 << 20)
	s.reclaim.Measure(false)
	ns := openNamespace(t, s, "a")
	if err := writeAll(t, s, chainOf(ns, 1, 1))[0]; !errors.Is(err, store.ErrBusy) || !strings.Contains(err.Error(), "min_free") {
		t.Errorf("error %v", err)
	}
	d.fill(0)
	s.reclaim.Measure(false)
	mustWrite(t, s, chainOf(ns, 1, 10))
}

// B9: a cap from a full disk was kept permanently, and a lost FORMAT made it small.
func TestDefaultCapFollowsTheFreeSpace(t *testing.T) {
	var log lockedBuffer
	d, j := newMemDisk(), newJournalFS()
	d.total = 1 << 30
	d.fill(1<<30 - 1<<20)
	o := memOptions(d, j)
	o.MaxBytes, o.Logger = 0, slog.New(slog.NewTextHandler(&log, nil))
	s := openTest(t, o)
	if st := s.Stats(); st.MaxBytes != MinMaxBytes || !strings.Contains(st.CapSource, "80%") || !strings.Contains(log.String(), "level=WARN msg=\"store: little space") {
		t.Errorf("cap %d from %q; log: %s", st.MaxBytes, st.CapSource, log.String())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	d.fill(0)
	s = openTest(t, o)
	first := s.Stats().MaxBytes
	if first < 800<<20 || first > 830<<20 {
		t.Errorf("cap %d of 1 GiB", first)
	}
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, ofSize(ns, 1, 20, 2<<20))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove("/store/" + recovery.FormatFile); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, o)
	if st := s.Stats(); st.MaxBytes < first-8<<20 || st.MaxBytes > first+8<<20 || st.Records != 20 {
		t.Errorf("cap %d, was %d before the store had records; %d records", st.MaxBytes, first, st.Records)
	}
}

// B11: a stop on a full disk failed though the journal has everything.
func TestStopOnAFullDiskSucceeds(t *testing.T) {
	var log lockedBuffer
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 1, 100))
	d.hook(func(op, path string) error {
		if op == "write" && strings.Contains(path, recovery.SnapshotFile) {
			return unix.ENOSPC
		}
		return nil
	})
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !strings.Contains(log.String(), "no snapshot of the index is kept") {
		t.Errorf("log: %s", log.String())
	}
	d.before.Store(nil)
	s = openTest(t, o)
	if st := s.Stats(); st.Recovered != recovery.RecoveredJournal || st.Records != 100 {
		t.Errorf("recovered from %s, %d records", st.Recovered, st.Records)
	}
}

// Nothing grows where others have taken what must stay free: no snapshot either.
func TestNoSnapshotBelowMinFree(t *testing.T) {
	d, s := sharedDisk(t, nil)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 1, 100))
	d.fill(128<<20 - 32<<20)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.ReadFile(filepath.Join(s.opts.Dir, recovery.SnapshotFile)); !fsio.IsNotExist(err) {
		t.Errorf("snapshot: %v", err)
	}
}

// lockedBuffer takes a log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
