package snapshot

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/record"
)

const (
	class     = 8192
	chainSize = 50
)

var name = Name{Store: record.StoreID{1, 2, 3}, Opens: 7}

func fits(int64) bool { return true }

// state is an index with its segments.
type state struct {
	table    *index.Table
	segments []Segment
	ids      []index.ID
}

// newState returns an index of two segments that holds the given number of records in chains. Some
// of the records were used out of turn, and some evicted.
func newState(t *testing.T, records int) *state {
	t.Helper()
	g := seed.Random(t, records)
	s := &state{table: index.New()}
	t.Cleanup(s.table.Close)
	for id := range uint32(2) {
		slots := uint32(records/2 + 1)
		base, err := s.table.AddSlots((slots + 63) &^ 63)
		if err != nil {
			t.Fatal(err)
		}
		s.table.Track(class, index.Range{Base: base, Slots: slots}, 0)
		s.segments = append(s.segments, Segment{ID: id + 1, Slots: slots, SlotBytes: class, Base: base})
	}
	var batch []index.Insertion
	for i := range records {
		id := index.ID{Namespace: uint16(i % 3), Shard: connector.Shard(i % 2)}
		binary.LittleEndian.PutUint64(id.Key[:], g.Uint64())
		in := index.Insertion{ID: id, Ref: s.segments[i%2].Base + index.Ref(i/2), Seq: uint64(i + 1), Bytes: uint32(4096 + i%7)}
		if i%chainSize >= 6 {
			in.Parent = s.ids[i-6].Key // of the same namespace and shard
		}
		s.ids = append(s.ids, id)
		if batch = append(batch, in); len(batch) == 256 || i == records-1 {
			s.table.Place(batch)
			s.table.Insert(batch)
			batch = batch[:0]
		}
	}
	for range records / 10 {
		s.table.Get(s.ids[g.IntN(records)], false)
	}
	if records > 0 {
		s.table.Choose(class)
		s.table.Evict(class, records/20, nil)
	}
	return s
}

// file is where snapshots of a test go.
func file(t *testing.T, fs fsio.FS) File {
	t.Helper()
	return File{FS: fs, Path: filepath.Join(t.TempDir(), "index.snap")}
}

// open loads the snapshot.
func open(t *testing.T, f File) (*state, uint64, error) {
	t.Helper()
	table := index.New()
	t.Cleanup(table.Close)
	segments, seq, err := f.Load(name, table)
	if err != nil {
		return nil, 0, err
	}
	for _, g := range segments {
		r := index.Range{Base: g.Base, Slots: g.Slots}
		table.Track(class, r, 0)
		table.Survey(r, nil)
	}
	return &state{table: table, segments: segments}, seq, nil
}

// mustEqual checks that an index is as the one that its snapshot was taken of: what it finds, and the
// order in which its records go.
func mustEqual(t *testing.T, got, want *state) {
	t.Helper()
	if got.table.Len() != want.table.Len() || got.table.PayloadBytes() != want.table.PayloadBytes() || got.table.Clock() < want.table.Clock() {
		t.Fatalf("%d records of %d bytes at %d, want %d of %d at %d", got.table.Len(), got.table.PayloadBytes(), got.table.Clock(),
			want.table.Len(), want.table.PayloadBytes(), want.table.Clock())
	}
	if len(got.segments) != len(want.segments) {
		t.Fatalf("%d segments, want %d", len(got.segments), len(want.segments))
	}
	for i, g := range want.segments {
		if got.segments[i] != g {
			t.Errorf("segment %+v, want %+v", got.segments[i], g)
		}
	}
	for _, id := range want.ids {
		a, there := got.table.Get(id, false)
		b, was := want.table.Get(id, false)
		if there != was || a != b {
			t.Fatalf("%v: %+v (%v), want %+v (%v)", id, a, there, b, was)
		}
	}
}

// A snapshot has all that the index has, the order of eviction included.
func TestSnapshotIsTheIndex(t *testing.T) {
	for _, records := range []int{0, 1, fewRecords, 80_000} {
		f, want := file(t, fsio.OS{}), newState(t, records)
		var asked int64
		if err := f.Save(name, 99, want.segments, want.table, func(n int64) bool { asked = n; return true }); err != nil {
			t.Fatal(err)
		}
		if size := sizeOf(t, f); size != asked {
			t.Errorf("%d records: asked for %d bytes, took %d", records, asked, size)
		}
		got, seq, err := open(t, f)
		if err != nil {
			t.Fatalf("%d records: %v", records, err)
		}
		if seq != 99 {
			t.Errorf("last sequence number %d", seq)
		}
		mustEqual(t, got, want)
		if records > fewRecords {
			continue // what a choice does not look at may be colder
		}
		a, b := evictAll(got.table), evictAll(want.table)
		if len(a) != len(b) {
			t.Fatalf("%d records go, want %d", len(a), len(b))
		}
		for i := range b {
			if a[i].ID != b[i].ID {
				t.Fatalf("%v is the %dth to go, want %v", a[i].ID, i, b[i].ID)
			}
		}
	}
}

// fewRecords are so few that the index looks at all of them when it chooses what is to go.
const fewRecords = 1000

// evictAll evicts all records, in the index's order.
func evictAll(table *index.Table) (out []index.Removed) {
	for table.Len() > 0 {
		table.Choose(class)
		out = table.Evict(class, 1, out)
	}
	return out
}

func sizeOf(t *testing.T, f File) int64 {
	t.Helper()
	info, err := os.Stat(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// What was written by another opening, or in another store, is not the state of this one. That there is
// none is an error of its own.
func TestSnapshotOfAnotherStateIsRefused(t *testing.T) {
	f, s := file(t, fsio.OS{}), newState(t, 100)
	if _, _, err := open(t, f); !fsio.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
	for _, other := range []Name{{name.Store, name.Opens + 1, 0}, {name.Store, name.Opens - 1, 0}, {record.StoreID{9}, name.Opens, 0}, {name.Store, name.Opens, 9}} {
		if err := f.Save(other, 1, s.segments, s.table, fits); err != nil {
			t.Fatal(err)
		}
		if _, _, err := open(t, f); !errors.Is(err, errUseless) {
			t.Errorf("%+v: %v", other, err)
		}
	}
}

// A snapshot for which there is no room is not written, and the one before stays.
func TestSnapshotThatDoesNotFitIsNotWritten(t *testing.T) {
	f, s := file(t, fsio.OS{}), newState(t, 100)
	if err := f.Save(name, 1, s.segments, s.table, fits); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(name, 2, s.segments, s.table, func(int64) bool { return false }); err == nil {
		t.Error("no error")
	}
	if _, seq, err := open(t, f); err != nil || seq != 1 {
		t.Errorf("the one before: %v, %d", err, seq)
	}
	if names, err := os.ReadDir(filepath.Dir(f.Path)); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
}

// A snapshot that is damaged or cut anywhere is refused, unless what it lost is between its blocks.
func TestDamagedSnapshotIsRefused(t *testing.T) {
	f, want := file(t, fsio.OS{}), newState(t, 1000)
	if err := f.Save(name, 1, want.segments, want.table, fits); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	g := seed.Random(t, 0)
	head := prefixBytes + int(binary.LittleEndian.Uint64(whole[8:]))
	try := func(what string, at int, b []byte) {
		t.Helper()
		if err := os.WriteFile(f.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, _, err := open(t, f)
		if err != nil {
			return
		}
		if at < head {
			t.Errorf("%s at %d of a head of %d: no error", what, at, head)
		}
		mustEqual(t, got, want)
		got.table.Close()
	}
	for at := 0; at < len(whole); {
		b := slices.Clone(whole)
		b[at] ^= 1 << g.IntN(8)
		try("a flipped bit", at, b)
		if at += 1 + g.IntN(5); at > head {
			at += g.IntN(2000)
		}
	}
	for end := 0; end < len(whole); end += 1 + g.IntN(2*fsio.Align) {
		try("the end", end, whole[:end])
	}
}

// A head that lies about how much follows costs no more memory than it has bytes.
func TestHeadThatLiesIsRefused(t *testing.T) {
	f, s := file(t, fsio.OS{}), newState(t, 100)
	if err := f.Save(name, 1, s.segments, s.table, fits); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(f.Path)
	if err != nil {
		t.Fatal(err)
	}
	const segments, spare, blocks = 24, 28, 32 // where they are in the head
	for _, at := range []int{segments, spare, blocks} {
		b := slices.Clone(whole)
		head := b[prefixBytes : prefixBytes+binary.LittleEndian.Uint64(b[8:])]
		binary.LittleEndian.PutUint32(head[at:], 1<<24)
		binary.LittleEndian.PutUint64(b[16:], xxh3.Hash(head))
		if err := os.WriteFile(f.Path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := open(t, f); err == nil {
			t.Errorf("field at %d: no error", at)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("field at %d: %d bytes of memory", at, n)
		}
	}
}

// failing has one operation of those that write a snapshot fail.
type failing struct {
	fsio.FS
	nth int // of the operations, from 1
	op  string
}

func (f *failing) fail(op string) error {
	if f.nth--; f.nth == 0 {
		f.op = op
		return unix.EIO
	}
	return nil
}

func (f *failing) OpenFile(path string, create, direct bool) (fsio.File, error) {
	if err := f.fail("open"); err != nil {
		return nil, err
	}
	out, err := f.FS.OpenFile(path, create, direct)
	return &failingFile{out, f}, err
}

func (f *failing) Remove(path string) error {
	return errors.Join(f.fail("remove"), f.FS.Remove(path))
}

func (f *failing) Rename(from, to string) error {
	if err := f.fail("rename"); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *failing) SyncDir(path string) error {
	return errors.Join(f.fail("syncdir"), f.FS.SyncDir(path))
}

type failingFile struct {
	fsio.File
	f *failing
}

// WriteVec of a write that fails leaves half of it.
func (f *failingFile) WriteVec(a, b []byte, offset int64) error {
	if err := f.f.fail("write"); err != nil {
		return errors.Join(err, f.File.WriteVec(a[:len(a)/2&^(fsio.Align-1)], nil, offset))
	}
	return f.File.WriteVec(a, b, offset)
}

func (f *failingFile) Datasync() error { return errors.Join(f.f.fail("datasync"), f.File.Datasync()) }
func (f *failingFile) Close() error    { return errors.Join(f.f.fail("close"), f.File.Close()) }

// Whichever step of writing a snapshot fails, there is the one before, or the new one, whole; and the
// next one is written as if nothing had been.
func TestSnapshotIsWholeOrTheOneBefore(t *testing.T) {
	failed := make(map[string]bool)
	s := newState(t, 1000)
	for nth := 1; ; nth++ {
		f := file(t, fsio.OS{})
		if err := f.Save(name, 1, s.segments, s.table, fits); err != nil {
			t.Fatal(err)
		}
		fs := &failing{FS: fsio.OS{}, nth: nth}
		saved := File{FS: fs, Path: f.Path}.Save(name, 2, s.segments, s.table, fits)
		if fs.nth > 0 {
			break
		}
		failed[fs.op] = true
		got, seq, err := open(t, f)
		if err != nil {
			t.Fatalf("%s fails: %v", fs.op, err)
		}
		mustEqual(t, got, s)
		if saved == nil && seq != 2 {
			t.Errorf("%s fails: no error, and the snapshot is the one before", fs.op)
		}
		if err := f.Save(name, 3, s.segments, s.table, fits); err != nil {
			t.Errorf("after %s failed: %v", fs.op, err)
		}
		if _, seq, err := open(t, f); err != nil || seq != 3 {
			t.Errorf("after %s failed: %v, %d", fs.op, err, seq)
		}
	}
	for _, op := range []string{"open", "write", "datasync", "close", "rename", "syncdir"} {
		if !failed[op] {
			t.Errorf("%s never failed", op)
		}
	}
}
