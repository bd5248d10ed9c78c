package disk

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/namespace"
)

// purgeWait is how long a purge waits for loads that do not end.
const purgeWait = 10 * time.Millisecond

// Whatever happens to process and machine right after the answer, nothing comes back; other namespaces keep all.
func TestPurgedRecordsDoNotComeBackAfterALossOfPower(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	ns, other := openNamespace(t, s, "purged"), openNamespace(t, s, "other")
	gone, kept := append(chainOf(ns, 1, 100), chainOf(ns, 2, 50)...), chainOf(other, 1, 20)
	mustWrite(t, s, gone)
	mustWrite(t, s, kept)
	u, err := s.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Purge(t.Context(), ns, purgeWait)
	if err != nil || r.Removed != int64(len(gone)) || r.Left != 0 || r.Incomplete {
		t.Fatalf("%+v, %v", r, err)
	}
	var journalAfter *vfs.MemFS
	crashed := d.crash(seed.Random(t, 0), func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	removed := 0
	for removed < len(gone) {
		events, err := u.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind != store.EventRemoved || e.ID.Namespace != ns {
				t.Fatalf("event %+v", e)
			}
			removed++
		}
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	again := openTest(t, memOptions(crashed, journalAfter))
	for _, s := range []*Store{s, again} {
		openNamespace(t, s, "purged")
		openNamespace(t, s, "other")
		for i := range gone {
			if isPresent(s, gone[i].ID) {
				t.Fatalf("record %d is there", i)
			}
		}
		mustRead(t, s, kept)
		mustBalance(t, s)
		mustWrite(t, s, gone) // the slots can be used again, and so can the keys
		mustRead(t, s, gone)
	}
	if n := s.Stats().Purged; n != uint64(len(gone)) {
		t.Errorf("%d records are counted, want %d", n, len(gone))
	}
}

func TestAPurgeLeavesWhatLoadsHold(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records[:4]), time.Minute)
	if n != 4 {
		t.Fatal(n)
	}
	if r, err := s.Purge(t.Context(), ns, purgeWait); err != nil || r.Removed != 6 || r.Left != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	mustRead(t, s, records[:4]) // the load that was promised
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, err := s.Purge(context.Background(), ns, time.Hour); err != nil || r.Removed != 4 || r.Left != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	for !s.purges.Holds(internalID(s, records[0].ID).Namespace) {
		time.Sleep(time.Millisecond)
	}
	if n := lookup(s, ns, records); n != 0 {
		t.Errorf("%d blocks are leased during a purge", n)
	}
	s.Release(lease)
	<-ended
	if _, err := s.Purge(t.Context(), connector.NamespaceDigest{1}, purgeWait); !errors.Is(err, namespace.ErrNotOpen) {
		t.Errorf("%v", err)
	}
}

func TestAPurgeEndsWithItsContext(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 4)
	mustWrite(t, s, records)
	_, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records), time.Minute)
	defer s.Release(lease)
	wait.For(t, "a purge that has looked before its time ends", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), purgeWait)
		defer cancel()
		r, err := s.Purge(ctx, ns, time.Hour)
		if !errors.Is(err, context.DeadlineExceeded) || r.Removed != 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		return r.Left == 4
	})
}

// Where the journal cannot note it, nothing is said to be removed for good.
func TestAPurgeWithoutAJournalFails(t *testing.T) {
	s := openTest(t, memOptions(newMemDisk(), newJournalFS()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	generation := s.journal.Generation()
	s.journal.Abandon("test")
	if r, err := s.Purge(t.Context(), ns, purgeWait); err == nil && s.journal.Generation() == generation {
		t.Errorf("%+v without a journal", r)
	}
	awaitJournal(t, s, generation)
	if _, err := s.Purge(t.Context(), ns, purgeWait); err != nil {
		t.Error(err)
	}
	mustBalance(t, s)
	if s.table.Len() != 0 {
		t.Errorf("%d records are left", s.table.Len())
	}
}

// Engines save and load while purges run: no read has a wrong byte (readAll looks), what is saved after a purge stays,
// and every slot is accounted for.
func TestPurgesBesideSavesAndLoads(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	o.MaxBytes = 64 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	var stop atomic.Bool
	var engines sync.WaitGroup
	for e := range 4 {
		engines.Go(func() {
			for round := 0; !stop.Load(); round++ {
				records := chainOf(ns, e*8+round%8, 20)
				for _, err := range writeAll(t, s, records) {
					if err != nil {
						t.Error(err)
					}
				}
				n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records), time.Minute)
				if errs := readAll(t, s, records[:n]); slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
					t.Errorf("leased records could not be read: %v", errs)
				}
				s.Release(lease)
			}
		})
	}
	removed := int64(0)
	for removed < 400 {
		r, err := s.Purge(t.Context(), ns, time.Minute)
		if err != nil || r.Left != 0 {
			t.Errorf("%+v, %v", r, err)
			break
		}
		removed += r.Removed
	}
	last := chainOf(ns, 1000, 20)
	mustWrite(t, s, last)
	mustRead(t, s, last)
	stop.Store(true)
	engines.Wait()
	mustBalance(t, s)
	mustRead(t, s, last)
}

// A save of what a purge is about to remove is no save of what is there.
func TestWhatIsSavedDuringAPurgeStays(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	_, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records), time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if r, err := s.Purge(context.Background(), ns, time.Hour); err != nil || r.Left != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}()
	for !s.purges.Holds(internalID(s, records[0].ID).Namespace) {
		time.Sleep(time.Millisecond)
	}
	mustWrite(t, s, records)
	mustRead(t, s, records) // the load that was promised
	s.Release(lease)
	<-ended
	mustRead(t, s, records)
	if n := lookup(s, ns, records); n != len(records) {
		t.Errorf("%d blocks are found", n)
	}
	mustBalance(t, s)
}
