package disk

import (
	"context"
	"errors"

	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"

	iofs "io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/store/disk/fsio"
	"golang.org/x/sys/unix"
)

// killedStore returns the options of a store as kill -9 leaves it after a barrier, and
// what it holds.
func killedStore(t *testing.T, o Options, chains int) (Options, []testRecord) {
	t.Helper()
	live := o
	live.Dir = t.TempDir()
	s := openTest(t, live)
	ns := openNamespace(t, s, "a")
	var all []testRecord
	for chain := range chains {
		all = append(all, damageChain(ns, chain, damageLength)...)
	}
	mustWrite(t, s, all)
	mustSync(t, s)
	o.Dir = filepath.Join(t.TempDir(), "store")
	copyTree(t, live.Dir, o.Dir)
	return o, all
}

func journalFiles(t *testing.T, dir, pattern string) []string {
	t.Helper()
	first, err := filepath.Glob(filepath.Join(dir, recovery.JournalDir, pattern))
	later, laterErr := filepath.Glob(filepath.Join(dir, recovery.JournalDir, "gen-*", pattern))
	if err := errors.Join(err, laterErr); err != nil || len(first)+len(later) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	return append(first, later...)
}

// allThere opens a store and checks that it has every record, and gave at most one warning,
// which says what.
func allThere(t *testing.T, o Options, records []testRecord, what string) *Store {
	t.Helper()
	s := openTest(t, o)
	awaitRebuild(t, s)
	mustRead(t, s, records)
	checkAccounting(t, s)
	if w := s.Stats().Warnings; len(w) != 1 || !strings.Contains(w[0], what) {
		t.Errorf("warnings %q, want one that says %q", w, what)
	}
	return s
}

// Defect 4: one flipped bit in a table of the journal, or in a log that is not the newest,
// and the store never opened again.
func TestDefect4FlippedBitInTheJournalIsMadeGood(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 40)
	for _, s := range []func(){
		func() {
			// A clean stop leaves tables; without the snapshot they are read.
			s := openTest(t, o)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(o.Dir, recovery.SnapshotFile)); err != nil {
				t.Fatal(err)
			}
			damageTables(t, o.Dir)
		},
		func() {
			path := journalFiles(t, o.Dir, "MANIFEST-*")[0]
			if err := flipBit(path, 20, 1); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s()
		again := allThere(t, o, records, "journal")
		if err := again.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if r := runFsck(t, o, true); !r.Clean() || r.Records != int64(len(records)) {
		t.Errorf("afterwards: %+v", r)
	}
}

// Defect 4, fsck: a table that is damaged is found by fsck although the snapshot hides it
// from the daemon.
func TestDefect4FsckMakesADamagedJournalAgain(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 40)
	s := openTest(t, o)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range journalFiles(t, o.Dir, "*.sst") {
		info, err := os.Stat(path)
		if err == nil {
			err = flipBit(path, info.Size()/4, 3)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := runFsck(t, o, true)
	if len(r.Failed) > 0 || len(r.Dropped) > 0 || len(r.Repaired) == 0 || r.Records != int64(len(records)) {
		t.Errorf("%+v", r)
	}
	if r = runFsck(t, o, true); !r.Clean() {
		t.Errorf("second time: %+v", r)
	}
	mustRead(t, openTest(t, o), records)
}

// Defect 5: a flipped bit in the newest log was taken for its end, and the segments that
// the rest of the log named were deleted.
func TestDefect5FlippedBitInTheNewestLogCostsNothing(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 100)
	logs := journalFiles(t, o.Dir, "*.log")
	info, err := os.Stat(logs[len(logs)-1])
	if err != nil {
		t.Fatal(err)
	}
	if err := flipBit(logs[len(logs)-1], info.Size()/10, 5); err != nil {
		t.Fatal(err)
	}
	before, err := filepath.Glob(filepath.Join(o.Dir, recovery.SegmentDir, "*.kv"))
	if err != nil {
		t.Fatal(err)
	}
	allThere(t, o, records, "journal")
	for _, path := range before {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("segment was removed: %v", err)
		}
	}
}

// noList is a file system on which the directory of segments cannot be listed a number of
// times.
type noList struct {
	fsio.OS
	left atomic.Int64
}

func (f *noList) ReadDir(path string) ([]iofs.DirEntry, error) {
	if filepath.Base(path) == recovery.SegmentDir && f.left.Add(-1) >= 0 {
		return nil, unix.EIO
	}
	return f.OS.ReadDir(path)
}

// Defects 8 and 25: a directory that cannot be read once wiped the store, and the files
// that stayed passed the cap.
func TestDefect8And25UnreadableDirectoryWipesNothing(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 30)
	fs := new(noList)
	o.fs = fs
	fs.left.Store(1 << 20)
	if _, err := Open(context.Background(), o); !errors.Is(err, recovery.ErrSegmentsMissing) || !errors.Is(err, unix.EIO) {
		t.Fatalf("error %v", err)
	}
	fs.left.Store(2)
	s := openTest(t, o)
	awaitRebuild(t, s)
	mustRead(t, s, records)
	if w := s.Stats().Warnings; len(w) > 0 {
		t.Errorf("warnings %q", w)
	}
}

// Defect 8: segments on a file system that is not mounted at one start.
func TestDefect8MissingSegmentsAreNotForgotten(t *testing.T) {
	t.Parallel()
	for _, loseJournal := range []bool{false, true} {
		o, records := killedStore(t, testOptions(""), 30)
		segments := filepath.Join(o.Dir, recovery.SegmentDir)
		away := segments + "-away"
		if err := os.Rename(segments, away); err != nil {
			t.Fatal(err)
		}
		if loseJournal {
			if err := os.RemoveAll(filepath.Join(o.Dir, recovery.JournalDir)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			_, err := Open(context.Background(), o)
			if !errors.Is(err, recovery.ErrSegmentsMissing) || !strings.Contains(err.Error(), "--forget-lost-segments") {
				t.Fatalf("error %v", err)
			}
		}
		if err := errors.Join(os.RemoveAll(segments), os.Rename(away, segments)); err != nil {
			t.Fatal(err)
		}
		s := openTest(t, o)
		awaitRebuild(t, s)
		mustRead(t, s, records)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(segments); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(context.Background(), o); !errors.Is(err, recovery.ErrSegmentsMissing) {
			t.Fatalf("error %v", err)
		}
		o.ForgetSegments = true
		s = openTest(t, o)
		if n := s.Stats().Records; n != 0 {
			t.Errorf("%d records", n)
		}
		mustWrite(t, s, records[:10])
		mustRead(t, s, records[:10])
	}
}

// Defect 9: an unreadable sector in one segment's header stopped the start.
func TestDefect9UnreadableSegmentHeader(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 30)
	paths, err := filepath.Glob(filepath.Join(o.Dir, recovery.SegmentDir, "*.kv"))
	if err != nil || len(paths) < 2 {
		t.Fatal(paths, err)
	}
	o.fs = &badFS{path: paths[1], page: 0}
	s := allThere(t, o, records, "header of segment")
	mustWrite(t, s, damageChain(records[0].ID.Namespace, 900, 30))
}

// Defect 29: a rebuild that is cut off began from nothing again; now it goes on with the
// segments that are left, and the store is in use meanwhile.
func TestDefect29RebuildGoesOnWhereItWasCutOff(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 80)
	if err := os.RemoveAll(filepath.Join(o.Dir, recovery.JournalDir)); err != nil {
		t.Fatal(err)
	}
	slow := holdReads(&o)
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	ns := openNamespace(t, s, "a")
	fresh := damageChain(ns, 5000, 10)
	mustWrite(t, s, fresh) // into a segment of its own
	mustRead(t, s, fresh)
	for s.rebuild.State().SegmentsDone == 0 {
		slow.pass.Add(20)
	}
	all, done := s.rebuild.State().Segments, s.rebuild.State().SegmentsDone
	mustSync(t, s)
	cut := filepath.Join(t.TempDir(), "cut")
	copyTree(t, o.Dir, cut)
	close(slow.release)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.fs, o.Dir = nil, cut
	s = openTest(t, o)
	if again := s.rebuild.State().Segments; again > all-done+1 {
		t.Errorf("after the cut %d segments are read again; %d of %d were done", again, done, all)
	}
	awaitRebuild(t, s)
	mustRead(t, s, append(records, fresh...))
	checkAccounting(t, s)
}

// heldFS lets a number of reads of segments pass and holds up the others.
type heldFS struct {
	fsio.OS
	pass    atomic.Int64
	release chan struct{}
}

// holdReads puts one below a store that lets 200 reads pass.
func holdReads(o *Options) *heldFS {
	f := &heldFS{release: make(chan struct{})}
	f.pass.Store(200)
	o.fs = f
	return f
}

func (f *heldFS) OpenFile(path string, create, direct bool) (fsio.File, error) {
	file, err := f.OS.OpenFile(path, create, direct)
	if err != nil || create || !strings.HasSuffix(path, segment.Suffix) {
		return file, err
	}
	return &heldFile{file, f}, nil
}

type heldFile struct {
	fsio.File
	fs *heldFS
}

func (f *heldFile) ReadVec(a, b []byte, offset int64) error {
	for f.fs.pass.Add(-1) < 0 {
		f.fs.pass.Add(1)
		select {
		case <-f.fs.release:
			return f.File.ReadVec(a, b, offset)
		default:
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 100_000}, nil)
	}
	return f.File.ReadVec(a, b, offset)
}

// A lost FORMAT file made the default cap of what was free beside a full store.
func TestLostFormatKeepsTheCap(t *testing.T) {
	o := testOptions(t.TempDir())
	o.MaxBytes = 0
	s := openTest(t, o)
	mustWrite(t, s, chainOf(openNamespace(t, s, "a"), 1, 40))
	before := s.Stats().MaxBytes
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(o.Dir, recovery.FormatFile)); err != nil {
		t.Fatal(err)
	}
	after := openTest(t, o).Stats()
	if diff := float64(after.MaxBytes-before) / float64(before); diff < -0.2 || diff > 0.2 {
		t.Errorf("cap %d, was %d", after.MaxBytes, before)
	}
}

// Segments of another store are neither used nor deleted.
func TestForeignSegmentsAreSetAside(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 30)
	other, _ := killedStore(t, testOptions(""), 3)
	foreign, err := filepath.Glob(filepath.Join(other.Dir, recovery.SegmentDir, "*.kv"))
	if err != nil || len(foreign) == 0 {
		t.Fatal(err)
	}
	b, err := os.ReadFile(foreign[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(o.Dir, recovery.SegmentDir, "seg-00000777.kv")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(o.Dir, recovery.FormatFile)); err != nil {
		t.Fatal(err)
	}
	s := allThere(t, o, records, "set aside")
	if st := s.Stats(); st.SetAsideBytes < int64(len(b)) || st.PhysicalBytes < st.SegmentBytes+int64(len(b)) {
		t.Errorf("%d bytes set aside, %d physical", st.SetAsideBytes, st.PhysicalBytes)
	}
	if kept, err := os.ReadFile(path + fsio.AsideSuffix); err != nil || !slices.Equal(kept, b) {
		t.Errorf("the foreign segment is not as it was: %v", err)
	}
}

// Chains are whole after a rebuild, and lose their ends before their heads.
func TestRebuiltChainsKeepTheirOrder(t *testing.T) {
	o, records := killedStore(t, damageOptions(""), 20)
	if err := os.RemoveAll(filepath.Join(o.Dir, recovery.JournalDir)); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, o)
	awaitRebuild(t, s)
	ns := openNamespace(t, s, "a")
	for chain := range 20 {
		if n := lookupOnly(s, damageChain(ns, chain, damageLength)); n != damageLength {
			t.Fatalf("chain %d has %d blocks", chain, n)
		}
	}
	for chain := 100; s.Stats().Evicted < 120; chain++ {
		mustWrite(t, s, damageChain(ns, chain, damageLength))
	}
	for chain := range 20 {
		all := damageChain(ns, chain, damageLength)
		n := lookupOnly(s, all)
		for i := n; i < len(all); i++ {
			if isPresent(s, all[i].ID) {
				t.Errorf("chain %d: block %d is there and block %d is not", chain, i, n)
			}
		}
		if chain == 19 && n != damageLength {
			t.Errorf("the last chain lost %d blocks before the first", damageLength-n)
		}
	}
	if lookupOnly(s, records[:damageLength]) == damageLength {
		t.Error("the first chain is still whole")
	}
}

// lookupOnly counts leading blocks without using them.
func lookupOnly(s *Store, chain []testRecord) int {
	for i := range chain {
		if !isPresent(s, chain[i].ID) {
			return i
		}
	}
	return len(chain)
}

func TestOpenTellsItsProgress(t *testing.T) {
	o, _ := killedStore(t, testOptions(""), 10)
	var calls atomic.Int64
	o.Progress = func(stage string, done, total int64) {
		if stage == "" || done < 0 || total < 0 {
			t.Errorf("stage %q, %d of %d", stage, done, total)
		}
		calls.Add(1)
	}
	openTest(t, o)
	if calls.Load() < 2 {
		t.Errorf("%d calls", calls.Load())
	}
}
