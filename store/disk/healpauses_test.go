package disk

import (
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"golang.org/x/sys/unix"
)

// failRenames fails the last step of opening a database while on is set, and counts.
func failRenames(on *atomic.Bool, failed *atomic.Int64) errorfs.InjectorFunc {
	return func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpRename {
			failed.Add(1)
			return &os.PathError{Op: "test", Path: op.Path, Err: unix.EIO}
		}
		return nil
	}
}

// manyFailures make the pauses rare.
const manyFailures = 100

// A disk that fails for an hour: the healing gave up for good after 100 failures.
func TestHealingGoesOnAsLongAsTheStoreIsOpen(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	var failed atomic.Int64
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, errorfs.Wrap(j, failRenames(&on, &failed)))
	o.healPauses = recovery.Pauses{First: time.Microsecond, Last: time.Microsecond, Rare: time.Millisecond, Forgive: time.Hour}
	s := watchCap(t, memOptions(d, j)).of(openTest(t, o))
	ns := openNamespace(t, s, "m")
	records := chainOf(ns, 1, 10)
	mustWrite(t, s, records)
	on.Store(true)
	s.journal.Abandon("test")
	for failed.Load() < manyFailures+20 && t.Context().Err() == nil {
		time.Sleep(time.Millisecond)
	}
	on.Store(false)
	awaitJournal(t, s, 0)
	more := chainOf(ns, 2, 10)
	mustWrite(t, s, more)
	mustRead(t, s, append(records, more...))
	mustBalance(t, s)
}

// After 100 failures in the life of a process every later one cost five minutes without saves.
func TestFailuresOfLongAgoDoNotDelayTheHealing(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	var failed atomic.Int64
	o := memOptions(newMemDisk(), errorfs.Wrap(newJournalFS(), failRenames(&on, &failed)))
	// A pause of a day is one that the test does not survive.
	o.healPauses = recovery.Pauses{First: time.Microsecond, Last: time.Microsecond, Rare: 24 * time.Hour, Forgive: time.Nanosecond}
	s := openTest(t, o)
	for failed.Load() < 2*manyFailures && t.Context().Err() == nil {
		on.Store(true)
		before := failed.Load()
		s.journal.Abandon("test")
		for failed.Load() < before+manyFailures/4 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		on.Store(false)
		awaitJournal(t, s, 0)
	}
	mustWrite(t, s, chainOf(openNamespace(t, s, "m"), 1, 10))
}
