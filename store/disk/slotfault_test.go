package disk

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// badSectors is a memory disk with files whose writes fail at some offsets.
type badSectors struct {
	*memDisk
	bad atomic.Pointer[func(path string, offset int64) error]
}

func (d *badSectors) OpenFile(path string, create, direct bool) (fsio.File, error) {
	f, err := d.memDisk.OpenFile(path, create, direct)
	if err != nil {
		return nil, err
	}
	return badSectorFile{f, d, path}, nil
}

type badSectorFile struct {
	fsio.File
	d    *badSectors
	path string
}

func (f badSectorFile) WriteVec(a, b []byte, offset int64) error {
	if bad := f.d.bad.Load(); bad != nil && strings.HasSuffix(f.path, segment.Suffix) {
		if err := (*bad)(f.path, offset); err != nil {
			return err
		}
	}
	return f.File.WriteVec(a, b, offset)
}

// place is where a write goes.
type place struct {
	path   string
	offset int64
}

func (d *badSectors) fail(f func(path string, offset int64) error) { d.bad.Store(&f) }

func openBadSectors(t *testing.T, change func(*Options)) (*badSectors, *Store) {
	t.Helper()
	d, j := &badSectors{memDisk: newMemDisk()}, newJournalFS()
	o := memOptions(d.memDisk, j)
	o.fs = d
	if change != nil {
		change(&o)
	}
	return d, watchCap(t, o).of(openTest(t, o))
}

// Defect 3: one unwritable sector made every save fail.
func TestBadSlotFailsOneWriteAndIsSetAside(t *testing.T) {
	d, s := openBadSectors(t, nil)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 0, 1))
	var bad atomic.Pointer[place]
	d.fail(func(path string, offset int64) error {
		if offset == 0 {
			return nil
		}
		at := place{path, offset}
		bad.CompareAndSwap(nil, &at)
		if at == *bad.Load() {
			return unix.EIO
		}
		return nil
	})
	failed := 0
	records := chainOf(ns, 1, 100)
	for i := range records {
		if writeAll(t, s, records[i:i+1])[0] != nil {
			failed++
		}
	}
	if failed != 1 {
		t.Errorf("%d of 100 writes one after the other failed, want the first", failed)
	}
	if st := s.Stats(); st.RestingSlots != 1 {
		t.Errorf("%d slots rest, want 1", st.RestingSlots)
	}
	// Tried again when there is no other slot, it is set aside.
	s.space.CoolDown(time.Now().Add(time.Second))
	for chain := 2; s.Stats().BadSlots == 0 && chain < 80; chain++ {
		for i, err := range writeAll(t, s, chainOf(ns, chain, 20)) {
			if err != nil && !errors.Is(err, store.ErrIO) {
				t.Fatalf("write %d: %v", i, err)
			}
		}
		s.space.CoolDown(time.Now().Add(time.Second))
	}
	if st := s.Stats(); st.BadSlots != 1 || st.WriteErrors != 2 {
		t.Errorf("%d slots are bad and %d writes failed, want 1 and 2", st.BadSlots, st.WriteErrors)
	}
	settle(t, s)
	checkAccounting(t, s)
}

// A disk that refuses every write for a while must not spoil slots nor evict records.
func TestDiskThatRefusesWritesForAWhileLosesNothing(t *testing.T) {
	t.Parallel()
	d, s := openBadSectors(t, nil)
	ns := openNamespace(t, s, "a")
	records := chainOf(ns, 1, 60)
	mustWrite(t, s, records)
	d.fail(func(string, int64) error { return unix.EIO })
	for chain := 2; chain < 30; chain++ {
		for i, err := range writeAll(t, s, chainOf(ns, chain, 20)) {
			if !errors.Is(err, store.ErrIO) {
				t.Fatalf("write %d of chain %d: %v", i, chain, err)
			}
		}
	}
	d.bad.Store(nil)
	if st := s.Stats(); st.Evicted != 0 || st.BadSlots != 0 || st.RestingSlots > 2*16 {
		t.Errorf("%d records evicted, %d slots bad, %d resting", st.Evicted, st.BadSlots, st.RestingSlots)
	}
	writeUntilDone(t, s, chainOf(ns, 100, 1))
	mustWrite(t, s, chainOf(ns, 101, 50))
	mustRead(t, s, records)
	settle(t, s)
	checkAccounting(t, s)
}

// A segment with many bad slots is made again.
func TestSegmentWithManyBadSlotsIsGivenUp(t *testing.T) {
	d, s := openBadSectors(t, nil)
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 0, 1))
	d.fail(func(path string, offset int64) error {
		// Every other slot.
		if strings.Contains(path, "00000001") && offset > 0 && offset/segment.SlotBytes(testPayload)%2 == 0 {
			return unix.EIO
		}
		return nil
	})
	gone := func() bool {
		return !slices.ContainsFunc(s.space.AllSegments(), func(g *segment.Segment) bool { return g.ID == 1 })
	}
	for chain := 1; !gone(); chain++ {
		_ = writeAll(t, s, chainOf(ns, chain, 10))
		s.space.CoolDown(time.Now().Add(time.Second))
		if chain > 400 {
			t.Fatalf("the segment is still there: %+v", s.Stats())
		}
	}
	d.bad.Store(nil)
	writeUntilDone(t, s, chainOf(ns, 1000, 1))
	mustWrite(t, s, chainOf(ns, 1001, 10))
	settle(t, s)
	checkAccounting(t, s)
}

// settle waits until nothing waits to be dropped, for a barrier, or is being given up.
func settle(t *testing.T, s *Store) {
	t.Helper()
	// A read returns before the committer has dropped the records that it found to be damaged.
	s.between(func(*committing) {})
	for range 2000 {
		if err := s.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.PendingSlots == 0 && st.RetiringSegments == 0 && st.WriteInFlightBytes == 0 && !s.space.Usage().Making {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("the store does not settle: %+v", s.Stats())
}

// writeUntilDone writes records again and again until each is written.
func writeUntilDone(t *testing.T, s *Store, records []testRecord) {
	t.Helper()
	for range 20_000 {
		if errors.Join(writeAll(t, s, records)...) == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("writes do not work again: %v", writeAll(t, s, records))
}
