package disk

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/fsio"
)

// badReads is a memory disk that does not read some offsets.
type badReads struct {
	*memDisk
	bad atomic.Pointer[func(at place) error]
}

func (d *badReads) OpenFile(path string, create, direct bool) (fsio.File, error) {
	f, err := d.memDisk.OpenFile(path, create, direct)
	if err != nil {
		return nil, err
	}
	return badReadFile{f, d, path}, nil
}

type badReadFile struct {
	fsio.File
	d    *badReads
	path string
}

func (f badReadFile) ReadVec(a, b []byte, offset int64) error {
	if bad := f.d.bad.Load(); bad != nil {
		if err := (*bad)(place{f.path, offset}); err != nil {
			return err
		}
	}
	return f.File.ReadVec(a, b, offset)
}

// badRead opens a store with records. The disk does not give the first.
func badRead(t *testing.T, timeout time.Duration, fault func() error) (*badReads, *Store, []testRecord) {
	t.Helper()
	d, j := &badReads{memDisk: newMemDisk()}, newJournalFS()
	o := memOptions(d.memDisk, j)
	o.fs = d
	o.ReadTimeout = timeout
	s := watchCap(t, o).of(openTest(t, o))
	records := chainOf(openNamespace(t, s, "a"), 1, 10)
	mustWrite(t, s, records)
	f, _ := s.table.Get(internalID(s, records[0].ID), false)
	g := s.space.At(f.Ref)
	bad := place{g.Path, g.Offset(uint32(f.Ref - g.Base))}
	fail := func(at place) error {
		if at == bad {
			return fault()
		}
		return nil
	}
	d.bad.Store(&fail)
	return d, s, records
}

// Defect 13: a record in a bad sector was offered again and again and could not be saved again.
func TestRecordThatCannotBeReadTwiceIsDroppedAndItsSlotSetAside(t *testing.T) {
	_, s, records := badRead(t, time.Minute, func() error { return unix.EIO })
	for range 2 {
		if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrIO) {
			t.Fatal(err)
		}
		mustRead(t, s, records[1:])
	}
	if isPresent(s, records[0].ID) {
		t.Error("the record is still offered")
	}
	settle(t, s) // the slot is set aside after the record has left the index
	if st := s.Stats(); st.BadSlots != 1 || st.Unreadable != 1 {
		t.Errorf("%d slots bad, %d records unreadable", st.BadSlots, st.Unreadable)
	}
	mustWrite(t, s, records[:1])
	mustRead(t, s, records)
	settle(t, s)
	checkAccounting(t, s)
}

// Defect 13: a save replaces a record whose last read failed.
func TestSaveReplacesARecordWhoseLastReadFailed(t *testing.T) {
	_, s, records := badRead(t, time.Minute, func() error { return unix.EIO })
	if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrIO) {
		t.Fatal(err)
	}
	mustWrite(t, s, records[:1])
	mustRead(t, s, records)
	settle(t, s)
	checkAccounting(t, s)
}

// saveOnce does not wait for room.
func saveOnce(s *Store, r *testRecord) error {
	done := make(chan error, 1)
	op := &store.WriteOp{Record: store.Record{ID: r.ID, Parent: r.Parent, Proof: r.Proof}, Payload: r.payload()}
	if _, err := s.Write([]*store.WriteOp{op}, func(op *store.WriteOp) { done <- op.Err }); err != nil {
		return err
	}
	return <-done
}

// A save that was refused dropped the record that it was to replace, which the disk may give
// again.
func TestRefusedSaveDropsNothing(t *testing.T) {
	for what, refuse := range map[string]func(t *testing.T, d *badReads, s *Store) (again func()){
		"disk": func(_ *testing.T, d *badReads, _ *Store) func() {
			d.hook(func(op, _ string) error {
				if op == "write" {
					return unix.ENOSPC
				}
				return nil
			})
			return func() { d.before.Store(nil) }
		},
		"budget": func(t *testing.T, d *badReads, s *Store) func() {
			hold := make(chan struct{})
			d.hook(func(op, _ string) error {
				if op == "write" {
					<-hold
				}
				return nil
			})
			s.opts.WriteInFlightBytes = 1
			other := chainOf(openNamespace(t, s, "b"), 1, 1)
			done := make(chan error, 1)
			go func() { done <- writeAll(t, s, other)[0] }()
			wait.For(t, "the budget is used up", func() bool { return s.writes.inFlightBytes() > 0 })
			return func() {
				close(hold)
				if err := <-done; err != nil {
					t.Error(err)
				}
				d.before.Store(nil)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			var fails atomic.Bool
			fails.Store(true)
			d, s, records := badRead(t, time.Minute, func() error {
				if fails.Load() {
					return unix.EIO
				}
				return nil
			})
			if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrIO) {
				t.Fatal(err)
			}
			again := refuse(t, d, s)
			if err := saveOnce(s, &records[0]); err == nil {
				t.Error("the save was taken")
			}
			if !isPresent(s, records[0].ID) {
				t.Error("the record is gone")
			}
			again()
			fails.Store(false)
			mustRead(t, s, records) // the fault has passed
			fails.Store(true)
			if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrIO) {
				t.Fatal(err)
			}
			mustWrite(t, s, records[:1])
			mustRead(t, s, records)
			settle(t, s)
			checkAccounting(t, s)
		})
	}
}

// Defect 13: the same for ErrTimeout.
func TestRecordThatTimesOutTwiceIsDropped(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	_, s, records := badRead(t, 50*time.Millisecond, func() error { <-release; return nil })
	for range 2 {
		if err := readAll(t, s, records[:1])[0]; !errors.Is(err, store.ErrTimeout) {
			t.Fatal(err)
		}
		good := false
		for range 100 {
			good = good || readAll(t, s, records[1:2])[0] == nil
			if good {
				break
			}
		}
	}
	for range 1000 {
		if !isPresent(s, records[0].ID) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("the record is still offered")
}

// A disk that gives nothing for a while costs no record.
func TestReadsThatAllFailForAWhileDropNothing(t *testing.T) {
	d, s, records := badRead(t, time.Minute, func() error { return nil })
	all := func(place) error { return unix.EIO }
	d.bad.Store(&all)
	for range 5 {
		for i, err := range readAll(t, s, records) {
			if !errors.Is(err, store.ErrIO) {
				t.Errorf("record %d: %v", i, err)
			}
		}
	}
	d.bad.Store(nil)
	mustRead(t, s, records)
	if st := s.Stats(); st.Unreadable != 0 || st.BadSlots != 0 {
		t.Errorf("%d records dropped, %d slots bad", st.Unreadable, st.BadSlots)
	}
}

// Defect 13: a record of another prefix must not keep the right one out.
func TestSaveReplacesARecordOfAnotherPrefixAfterItsReadFailed(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	records := chainOf(openNamespace(t, s, "a"), 1, 3)
	mustWrite(t, s, records)
	other := append([]testRecord(nil), records...)
	other[1].Proof[3]++
	mustWrite(t, s, other[1:2]) // nobody has found fault with the one that is there
	mustRead(t, s, records)
	if err := readAll(t, s, other[1:2])[0]; !errors.Is(err, store.ErrMismatch) {
		t.Fatal(err)
	}
	mustWrite(t, s, other[1:2])
	mustRead(t, s, other)
	settle(t, s)
	checkAccounting(t, s)
}
