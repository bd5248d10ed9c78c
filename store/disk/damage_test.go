package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// damagePayload makes small slots, so that a trial copies little.
const damagePayload = 4 << 10

func damageOptions(dir string) Options {
	o := testOptions(dir)
	o.MaxBytes, o.SegmentBytes = 8<<20, 1<<20
	return o
}

func damageChain(ns connector.NamespaceDigest, chain, n int) []testRecord {
	out := chainOf(ns, chain, n)
	for i := range out {
		out[i].Bytes = damagePayload
	}
	return out
}

// damageBase is a store to be damaged, as it was at two moments.
type damageBase struct {
	clean, killed, older string // directories
	records              map[string][]placedRecord
}

// placedRecord is a record and where its bytes are.
type placedRecord struct {
	testRecord
	file   string
	offset int64
	bytes  int64
}

const damageChains, damageLength = 60, 12

// newDamageBase makes a store that was opened three times and has evicted.
func newDamageBase(t testing.TB) *damageBase {
	t.Helper()
	root := t.TempDir()
	b := &damageBase{clean: root + "/clean", killed: root + "/killed", older: root + "/older", records: make(map[string][]placedRecord)}
	live := root + "/live"
	write := func(s *Store, first, n int) []testRecord {
		ns := openNamespace(t, s, "a")
		var all []testRecord
		for chain := first; chain < first+n; chain++ {
			all = append(all, damageChain(ns, chain, damageLength)...)
			mustWrite(t, s, all[len(all)-damageLength:])
			if chain%10 == 9 {
				mustSync(t, s)
			}
		}
		return all
	}
	stop := func(s *Store) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open := func() *Store {
		s, err := Open(context.Background(), damageOptions(live))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if err := os.WriteFile(live+"/CALIBRATION", []byte(`{"read_in_flight_bytes":8388608,"bytes_per_s":1e9,"measured":null,"at":"2026-01-01T00:00:00Z"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	all := write(s, 0, damageChains/2)
	stop(s)
	copyTree(t, live, b.older)
	s = open()
	all = append(all, write(s, damageChains/2, damageChains/2)...)
	mustSync(t, s)
	b.records["killed"] = placesOf(t, s, all)
	copyTree(t, live, b.killed)
	b.records["clean"] = placesOf(t, s, all)
	stop(s)
	copyTree(t, live, b.clean)
	if n := len(b.records["clean"]); n < 200 || n == len(all) {
		t.Fatalf("%d of %d records are there: some should have been evicted", n, len(all))
	}
	return b
}

func mustSync(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// placesOf returns the records that are in the store.
func placesOf(t testing.TB, s *Store, all []testRecord) []placedRecord {
	t.Helper()
	var out []placedRecord
	for _, r := range all {
		f, ok := s.table.Get(internalID(s, r.ID), false)
		if !ok {
			continue
		}
		g := s.space.At(f.Ref)
		out = append(out, placedRecord{r, recovery.SegmentDir + "/" + filepath.Base(g.Path), g.Offset(uint32(f.Ref - g.Base)), g.SlotBytes})
	}
	return out
}

func copyTree(t testing.TB, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, content, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damageKinds are the kinds of files, as patterns of their paths.
var damageKinds = []string{
	"FORMAT", "STAMP", "LOCK", "CALIBRATION", "index.snap", "namespaces/*.json", "segments/*.kv",
	"index/MANIFEST-*", "index/OPTIONS-*", "index/*.log", "index/*.sst", "index/marker.*", "index/LOCK", "index",
}

var damageFaults = []string{"flip", "cut", "delete", "zero", "older", "eio", "directory"}

// trial is one fault in one file of one copy of the store.
type trial struct {
	state, kind, fault string
	seed               uint64
}

func (tr trial) String() string {
	return fmt.Sprintf("%s after %s of %s (seed %d)", tr.fault, tr.state, tr.kind, tr.seed)
}

// inflict damages a copy of the store and returns the file, or false if that cannot be.
func (tr trial) inflict(t testing.TB, b *damageBase, dir string, g *rand.Rand) (file string, ok bool) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, tr.kind))
	if err == nil && len(found) == 0 && tr.fault == "older" {
		// A file that this state has not comes back.
		old, _ := filepath.Glob(filepath.Join(b.older, tr.kind))
		for _, path := range old {
			file, _ = filepath.Rel(b.older, path)
			copyFile(t, path, filepath.Join(dir, file))
			return file, true
		}
	}
	if err != nil || len(found) == 0 {
		return "", false
	}
	path := found[g.IntN(len(found))]
	file, _ = filepath.Rel(dir, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.IsDir() && tr.fault != "delete" && tr.fault != "older" {
		return file, false
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	switch tr.fault {
	case "flip":
		if info.Size() == 0 {
			return file, false
		}
		must(flipBit(path, g.Int64N(info.Size()), uint(g.IntN(8))))
	case "cut":
		if info.Size() == 0 {
			return file, false
		}
		must(os.Truncate(path, g.Int64N(info.Size())))
	case "delete":
		must(os.RemoveAll(path))
	case "zero":
		must(os.WriteFile(path, make([]byte, info.Size()), 0o600))
	case "older":
		old := filepath.Join(b.older, file)
		if _, err := os.Stat(old); err != nil {
			return file, false
		}
		must(os.RemoveAll(path))
		if info.IsDir() {
			copyTree(t, old, path)
			break
		}
		copyFile(t, old, path)
	case "directory":
		must(os.RemoveAll(path))
		must(os.MkdirAll(filepath.Join(path, "sub"), 0o700))
	case "eio":
	}
	return file, true
}

// badFS is a file system on which one page of a file cannot be read.
type badFS struct {
	fsio.OS
	path string
	page int64
}

func (f *badFS) OpenFile(path string, create, direct bool) (fsio.File, error) {
	file, err := f.OS.OpenFile(path, create, direct)
	if err != nil || path != f.path {
		return file, err
	}
	return &badFile{file, f.page}, nil
}

func (f *badFS) ReadFile(path string) ([]byte, error) {
	if path == f.path {
		return nil, &os.PathError{Op: "read", Path: path, Err: unix.EIO}
	}
	return f.OS.ReadFile(path)
}

type badFile struct {
	fsio.File
	page int64
}

func (f *badFile) ReadVec(a, b []byte, offset int64) error {
	if at := f.page * fsio.Align; at+fsio.Align > offset && at < offset+int64(len(a)+len(b)) {
		return unix.EIO
	}
	return f.File.ReadVec(a, b, offset)
}

// failReads makes one file of the journal unreadable, until it is removed or renamed.
func failReads(path string) vfs.FS {
	var gone atomic.Bool
	return errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpRename, errorfs.OpRemoveAll:
			gone.Store(true)
		case errorfs.OpRemove:
			if op.Path == path {
				gone.Store(true)
			}
		case errorfs.OpFileRead, errorfs.OpFileReadAt:
			if op.Path == path && !gone.Load() {
				return unix.EIO
			}
		}
		return nil
	}))
}

// run makes one trial and returns the share of the intact records that are there after it.
func (tr trial) run(t *testing.T, b *damageBase, dir string) (share float64, ok bool) {
	t.Helper()
	g := rand.New(rand.NewPCG(tr.seed, 11))
	source := b.clean
	if tr.state == "kill" {
		source = b.killed
	}
	copyTree(t, source, dir)
	defer func() { _ = os.RemoveAll(dir) }()
	file, ok := tr.inflict(t, b, dir, g)
	if !ok {
		return 0, false
	}
	o := damageOptions(dir)
	page := int64(-1)
	if tr.fault == "eio" {
		path := filepath.Join(dir, file)
		if strings.HasPrefix(file, recovery.JournalDir) {
			o.journalFS = failReads(path)
		} else {
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			page = g.Int64N(max(1, info.Size()/fsio.Align))
			o.fs = &badFS{path: path, page: page}
		}
	}
	intact := tr.intact(t, b, source, dir, file, page)
	w := watchCap(t, damageOptions(dir)) // looks past the fault
	defer w.stop()
	if g.IntN(4) == 0 {
		// fsck comes first, and must drop nothing that is intact either.
		if r, err := Fsck(context.Background(), dir, FsckOptions{Store: o}); err != nil {
			t.Errorf("%v: fsck: %v, %+v", tr, err, r)
		}
	}
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Errorf("%v: %v", tr, err)
		return 0, true
	}
	defer func() {
		w.of(nil)
		if err := s.Close(); err != nil {
			t.Errorf("%v: close: %v", tr, err)
		}
	}()
	return tr.check(t, w.of(s), intact), true
}

// intact returns the records whose own bytes the fault left alone.
func (tr trial) intact(t testing.TB, b *damageBase, source, dir, file string, page int64) []testRecord {
	t.Helper()
	var before, after []byte
	if strings.HasPrefix(file, recovery.SegmentDir) {
		before, _ = os.ReadFile(filepath.Join(source, file))
		after, _ = os.ReadFile(filepath.Join(dir, file))
	}
	name := "clean"
	if tr.state == "kill" {
		name = "killed"
	}
	var out []testRecord
	for _, r := range b.records[name] {
		if r.file == file {
			end := r.offset + r.bytes
			if end > int64(len(after)) || !bytes.Equal(before[r.offset:end], after[r.offset:end]) ||
				page >= 0 && page*fsio.Align < end && (page+1)*fsio.Align > r.offset {
				continue
			}
		}
		out = append(out, r.testRecord)
	}
	return out
}

// check reads everything, writes something and adds up.
func (tr trial) check(t *testing.T, s *Store, intact []testRecord) float64 {
	t.Helper()
	awaitRebuild(t, s)
	ns := openNamespace(t, s, "a")
	for i := range intact {
		intact[i].ID.Namespace = ns
	}
	found := 0
	for i, err := range readAll(t, s, intact) {
		switch {
		case err == nil:
			found++
		case errors.Is(err, store.ErrMismatch), errors.Is(err, store.ErrInvalid):
			t.Errorf("%v: record %d: %v", tr, i, err)
		}
	}
	st := s.Stats()
	if len(st.Warnings) > 1 {
		t.Errorf("%v: %d warnings: %q", tr, len(st.Warnings), st.Warnings)
	}
	tr.saveMore(t, s, damageChain(ns, 1000, damageLength))
	checkAccounting(t, s)
	physical, err := fsio.OS{}.PhysicalBytes(s.opts.Dir)
	if limit := s.opts.MaxBytes; err != nil || physical > limit || s.Stats().PhysicalBytes > limit {
		t.Errorf("%v: %d bytes on disk, %d accounted, cap %d: %v", tr, physical, s.Stats().PhysicalBytes, limit, err)
	}
	share := float64(found) / float64(len(intact))
	if share < 0.98 {
		t.Errorf("%v: %d of %d intact records are there; %v; %q", tr, found, len(intact), st.Recovered, st.Warnings)
	}
	return share
}

// saveMore saves records and reads them. One that fell on a page that cannot be read is
// saved a second time, and is then elsewhere.
func (tr trial) saveMore(t *testing.T, s *Store, more []testRecord) {
	t.Helper()
	for attempt := range 2 {
		for _, err := range writeAll(t, s, more) {
			if err != nil {
				t.Errorf("%v: write: %v", tr, err)
			}
		}
		mustSync(t, s)
		var unread []testRecord
		for i, err := range readAll(t, s, more) {
			switch {
			case err == nil:
			case attempt == 0 && tr.fault == "eio" && errors.Is(err, store.ErrIO):
				unread = append(unread, more[i])
			default:
				t.Errorf("%v: read of what was written after it: %v", tr, err)
			}
		}
		if more = unread; len(more) == 0 {
			return
		}
	}
}

// damageSum is what the trials of one kind of file and fault showed.
type damageSum struct {
	trials int
	worst  float64
}

// TestAnyDamagedFileCostsOnlyItsOwnRecords damages each kind of file in each way, after a
// clean stop and after kill -9.
func TestAnyDamagedFileCostsOnlyItsOwnRecords(t *testing.T) {
	t.Parallel()
	rounds, sample := 1, 6 // one trial of that many
	if longTest() {
		rounds, sample = 62, 1 // 10,000 trials
	}
	if n := os.Getenv("KVCONN_TEST_ROUNDS"); n != "" {
		_, _ = fmt.Sscan(n, &rounds)
		sample = 1
	}
	first := seed.Of(t)
	b := newDamageBase(t)
	dir := t.TempDir()
	sums := make(map[string]*damageSum)
	n, began := 0, time.Now()
	g := rand.New(rand.NewPCG(first, 12))
	for round := range rounds {
		for _, state := range []string{"clean stop", "kill"} {
			for _, kind := range damageKinds {
				for _, fault := range damageFaults {
					if g.IntN(sample) > 0 {
						continue
					}
					tr := trial{state, kind, fault, first + uint64(round)}
					share, ok := tr.run(t, b, filepath.Join(dir, "store"))
					if !ok {
						continue
					}
					key := fmt.Sprintf("%-20s %-10s %s", kind, fault, state)
					sum := sums[key]
					if sum == nil {
						sum = &damageSum{worst: 1}
						sums[key] = sum
					}
					n++
					sum.trials++
					sum.worst = min(sum.worst, share)
				}
			}
		}
	}
	var lines []string
	for key, sum := range sums {
		lines = append(lines, fmt.Sprintf("%-45s %5d trials, worst %.4f", key, sum.trials, sum.worst))
	}
	slices.Sort(lines)
	t.Logf("%d trials, %v each\n%s", n, time.Since(began)/time.Duration(max(1, n)), strings.Join(lines, "\n"))
}
