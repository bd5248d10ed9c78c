package disk

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// noSegments is the file system on which no segment can be made.
type noSegments struct {
	fsio.OS
	tried atomic.Int64
}

func (f *noSegments) OpenFile(path string, create, direct bool) (fsio.File, error) {
	if create && strings.Contains(path, segment.Prefix) {
		f.tried.Add(1)
		return nil, unix.EIO
	}
	return f.OS.OpenFile(path, create, direct)
}

// A disk on which no segment can be made must cost saves, not a processor.
func TestWritesEndWhereNoSegmentCanBeMade(t *testing.T) {
	f := new(noSegments)
	const slotWait = 100 * time.Millisecond
	o := Options{Dir: t.TempDir(), MaxBytes: 64 << 20, SlotWait: slotWait, Writers: 1, Logger: slog.New(slog.DiscardHandler)}.WithFS(f, vfs.Default)
	w := watchCap(t, o)
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.of(s)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ns, err := s.OpenNamespace(&connector.Manifest{
		Engine: "test/1", Model: "m", KVDType: "float32", BlockSize: 16, Groups: []connector.Group{{Layers: 1}},
		TensorParallel: 1, PipelineParallel: 1, KeyScheme: connector.KeySchemeTokens, HashScheme: connector.HashScheme,
	})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	op := &store.WriteOp{Record: store.Record{ID: store.RecordID{Namespace: ns, Key: connector.Key{1}}}, Payload: store.AlignedBuffer(4096)}
	if _, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { done <- op.Err }); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, store.ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	if n := f.tried.Load(); n > 4*int64(slotWait/(20*time.Millisecond)) {
		t.Errorf("a segment was tried %d times in %v", n, slotWait)
	}
}

// A segment that cannot be opened counts under the cap, and is not deleted for it.
func TestSegmentThatCannotBeOpenedCountsAndStays(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := range 100 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	held := s.space.AllSegments()[0].Path
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	w := watchCap(t, o)
	d.hook(func(op, path string) error {
		if op == "open" && path == held {
			return unix.EIO
		}
		return nil
	})
	s = w.of(openTest(t, o))
	awaitRebuild(t, s)
	if st := s.Stats(); st.SetAsideBytes == 0 {
		t.Error("it is not counted")
	}
	b := openNamespace(t, s, "b")
	for chain := range 60 {
		mustWrite(t, s, chainOf(ns, 1000+chain, 20))
		mustWrite(t, s, ofSize(b, 2000+chain, 2, otherPayload))
	}
	settle(t, s)
	checkAccounting(t, s)
	w.of(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n, err := d.PhysicalBytes(held); n == 0 || err != nil {
		t.Error("it was deleted")
	}
	d.before.Store(nil)
	s = openTest(t, o)
	awaitRebuild(t, s) // it has the oldest records: now it may be given up for the cap
	checkAccounting(t, s)
}

// A segment that the disk does not give at a start is there again when it does, without a
// restart, with its records and with nothing in the place of those that were saved meanwhile.
func TestSegmentIsUsedAgainWhenTheDiskGivesIt(t *testing.T) {
	t.Parallel()
	for _, failing := range []string{"open", "size", "read"} {
		t.Run(failing, func(t *testing.T) {
			d, o, records := segmentsOnDisk(t)
			held := d.segmentPaths()[0]
			w := watchCap(t, o)
			d.hook(func(op, path string) error {
				if op == failing && path == held {
					return unix.EIO
				}
				return nil
			})
			// Without the journal nothing else tells of a segment that cannot be read.
			o.journalFS = newJournalFS()
			s := w.of(openTest(t, o))
			awaitRebuild(t, s)
			ns := openNamespace(t, s, "m")
			st := s.Stats()
			if st.AwaitedSegments != 1 || st.Records == int64(len(records)) || st.Records == 0 {
				t.Fatalf("%d segments are awaited, %d records there of %d", st.AwaitedSegments, st.Records, len(records))
			}
			again := records[:40]
			mustWrite(t, s, again) // some of these are in the segment that is awaited
			d.hook(func(string, string) error { return nil })
			awaitSegments(t, s)
			mustRead(t, s, records)
			if n := s.Stats().Records; n != int64(len(records)) {
				t.Errorf("%d records, want %d", n, len(records))
			}
			mustWrite(t, s, chainOf(ns, 1000, 20))
			mustSync(t, s)
			mustBalance(t, s)
			w.of(nil)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openTest(t, o)
			if r := s.Stats().Recovered; r != recovery.RecoveredSnapshot {
				t.Errorf("the next start reads the %s", r)
			}
			openNamespace(t, s, "m")
			mustRead(t, s, records)
			mustBalance(t, s)
		})
	}
}

// segmentsOnDisk returns a disk with a store of several segments that is down.
func segmentsOnDisk(t *testing.T) (d *memDisk, o Options, records []testRecord) {
	t.Helper()
	d = newMemDisk()
	o = memOptions(d, newJournalFS())
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	for chain := range 10 {
		records = append(records, chainOf(ns, chain, 20)...)
	}
	mustWrite(t, s, records)
	if n := s.Stats().Segments; n < 3 {
		t.Fatalf("%d segments", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return d, o, records
}

func awaitSegments(t *testing.T, s *Store) {
	t.Helper()
	for s.Stats().AwaitedSegments > 0 {
		unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
	}
}

// A store that is never without a load in flight reads the headers of a segment that came back all
// the same: nothing else would end the wait for its records.
func TestSegmentThatComesBackIsReadBesideLoads(t *testing.T) {
	t.Parallel()
	d, o, records := segmentsOnDisk(t)
	paths := d.segmentPaths()
	held, other := paths[0], paths[1]
	d.hook(func(op, path string) error {
		if op == "open" && path == held {
			return unix.EIO
		}
		return nil
	})
	s := openTest(t, o)
	openNamespace(t, s, "m")
	reading, release := make(chan struct{}, len(records)), make(chan struct{})
	d.hook(func(op, path string) error {
		if op == "read" && path == other {
			reading <- struct{}{}
			<-release
		}
		return nil
	})
	var loads sync.WaitGroup
	loads.Go(func() { readAll(t, s, records) })
	<-reading
	for range 10_000 {
		if s.Stats().AwaitedSegments == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := s.Stats().AwaitedSegments; n > 0 {
		t.Errorf("%d segments are awaited while a load is in flight", n)
	}
	close(release)
	loads.Wait()
	awaitSegments(t, s)
	mustRead(t, s, records)
}
