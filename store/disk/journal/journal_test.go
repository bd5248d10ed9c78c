package journal

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/kvconn/kvconn/connector"
)

func openTest(t *testing.T, fs vfs.FS) *Journal {
	t.Helper()
	j, err := Open(Options{Dir: "/j", FS: fs, CacheBytes: 1 << 20, MemTableBytes: MinMemTableBytes, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func testRecord(i uint32) Record {
	return Record{
		Location: Location{i % 3, i}, Namespace: 1, Shard: 2, Key: [16]byte{byte(i)}, Parent: [16]byte{byte(i + 1)},
		ParentAt: Location{i, 7}, Depth: 9, Bytes: 4096, Seq: uint64(i) + 1,
		Scope: [16]byte{byte(i), 3}, KeyScheme: 1, Algorithm: 2, KeyID: i + 3, Flags: 4,
	}
}

func TestJournalKeepsWhatABarrierMadeDurable(t *testing.T) {
	mem := vfs.NewCrashableMem()
	j := openTest(t, mem)
	b := j.NewBatch()
	for i := range uint32(100) {
		r := testRecord(i)
		if err := b.PutRecord(&r); err != nil {
			t.Fatal(err)
		}
	}
	gone := testRecord(50)
	if err := errors.Join(b.DeleteRecord(gone.Location), b.PutSize(1, 2, 4096), b.PutNamespace(Namespace{ID: 1}), b.Commit(),
		j.PutSegment(Segment{1, 2, 8192}), j.PutMeta("a", []byte("b")), j.Barrier()); err != nil {
		t.Fatal(err)
	}
	after := openTest(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	n := 0
	err := after.Records(0, 1<<32-1, func(r *Record) error {
		n++
		if want := testRecord(r.Location.Slot); *r != want {
			t.Errorf("%+v, want %+v", *r, want)
		}
		return nil
	}, func(err error) { t.Error(err) })
	if err != nil || n != 99 {
		t.Errorf("%d records, %v", n, err)
	}
	segments, err := after.Segments()
	if err != nil || len(segments) != 1 || segments[0] != (Segment{1, 2, 8192}) {
		t.Errorf("%v, %v", segments, err)
	}
	names, err := after.Namespaces()
	if err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if v, err := after.Meta("a"); err != nil || string(v) != "b" {
		t.Errorf("%q, %v", v, err)
	}
	if v, err := after.Meta("absent"); err != nil || v != nil {
		t.Errorf("%q, %v", v, err)
	}
	if err := errors.Join(after.Close(), j.Close()); err != nil {
		t.Error(err)
	}
}

func TestRecordsOfFormat1AreRead(t *testing.T) {
	want := testRecord(7)
	var got Record
	if err := got.decode(recordKey(nil, want.Location), want.appendValue(nil)[:firstValueBytes]); err != nil {
		t.Fatal(err)
	}
	want.Scope, want.KeyScheme, want.Algorithm, want.KeyID, want.Flags = connector.UnknownScope, 0, 0, 0, 0
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func FuzzRecord(f *testing.F) {
	r := testRecord(7)
	key, value := recordKey(nil, r.Location), r.appendValue(nil)
	f.Add(key, value)
	f.Add(key, value[:firstValueBytes])
	f.Add(key, value[:firstValueBytes+1])
	f.Fuzz(func(t *testing.T, key, value []byte) {
		var r, again Record
		if r.decode(key, value) != nil {
			return
		}
		if err := again.decode(recordKey(nil, r.Location), r.appendValue(nil)); err != nil || again != r {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}

func TestMalformedEntryIsPassedOver(t *testing.T) {
	j := openTest(t, vfs.NewMem())
	defer func() { _ = j.Close() }()
	r := testRecord(5)
	b := j.NewBatch()
	if err := errors.Join(b.PutRecord(&r), b.Commit(), j.set(recordKey(nil, Location{1, 1}), []byte("short"))); err != nil {
		t.Fatal(err)
	}
	bad, good := 0, 0
	err := j.Records(0, 1<<32-1, func(*Record) error { good++; return nil }, func(error) { bad++ })
	if err != nil || bad != 1 || good != 1 {
		t.Errorf("%d bad, %d good, %v", bad, good, err)
	}
}

// TestFailedDiskEndsTheJournalAndNothingElse fails a write in a place where Pebble would
// end the process.
func TestFailedDiskEndsTheJournalAndNothingElse(t *testing.T) {
	for _, what := range []string{".log", "MANIFEST", ".sst"} {
		var broken atomic.Bool
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && strings.Contains(op.Path, what) {
				return os.ErrPermission
			}
			return nil
		})
		j := openTest(t, errorfs.Wrap(vfs.NewMem(), inject))
		r := testRecord(1)
		b := j.NewBatch()
		if err := errors.Join(b.PutRecord(&r), b.Commit(), j.Barrier()); err != nil {
			t.Fatal(err)
		}
		broken.Store(true)
		var err error
		for i := uint32(0); err == nil && i < 100; i++ {
			r := testRecord(i)
			err = errors.Join(b.PutRecord(&r), b.Commit(), j.Flush(), j.Barrier())
		}
		if !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", what, err)
		}
		<-j.Failed()
		if err := j.Close(); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: close: %v", what, err)
		}
	}
}

// The reserved bytes of a value are zeros, and what an older store has there changes nothing.
func TestReservedBytesOfARecordAreNotRead(t *testing.T) {
	r := testRecord(3)
	key, value := recordKey(nil, r.Location), r.appendValue(nil)
	if reserved := value[6:10]; !bytes.Equal(reserved, make([]byte, 4)) {
		t.Errorf("% x", reserved)
	}
	copy(value[6:], "tick")
	var got Record
	if err := got.decode(key, value); err != nil || got != r {
		t.Errorf("%+v, %v", got, err)
	}
}
