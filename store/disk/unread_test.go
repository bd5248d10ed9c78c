package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// manyBad slots of a segment are enough to give it up.
const manyBad = 8

// A segment with bad slots was given up while its headers were read: what they named was
// added to a segment that was no more.
func TestBadSlotsOfASegmentThatIsRead(t *testing.T) {
	t.Parallel()
	o, records := killedStore(t, testOptions(""), 80)
	if err := os.Remove(filepath.Join(o.Dir, recovery.StampFile)); err != nil {
		t.Fatal(err)
	}
	slow := holdReads(&o)
	w := watchCap(t, o)
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	w.of(s)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	unread := slices.DeleteFunc(s.space.AllSegments(), func(g *segment.Segment) bool { return !g.IsUnread() })
	if len(unread) == 0 {
		t.Fatal("no segment is read")
	}
	g := unread[len(unread)-1]
	for i := range index.Ref(manyBad) { // at its end, where nothing was written
		s.space.Spoil(g.Base + index.Ref(g.Slots) - 1 - i)
	}
	for range 20 { // the shrinker looks
		s.reclaim.WakeShrinker()
		time.Sleep(time.Millisecond)
	}
	close(slow.release)
	awaitRebuild(t, s)
	settle(t, s)
	checkAccounting(t, s)
	missing := 0
	for _, err := range readAll(t, s, records) {
		if err != nil {
			missing++
		}
	}
	if missing > int(g.Slots) {
		t.Errorf("%d of %d records are gone with a segment of %d", missing, len(records), g.Slots)
	}
	fresh := damageChain(openNamespace(t, s, "a"), 7000, 300)
	mustWrite(t, s, fresh)
	mustRead(t, s, fresh)
}

// A segment that takes no new records and could not be given up, since one was held, gave
// its empty slots to writers.
func TestFrozenSegmentStaysFrozenWhenItIsNotGivenUp(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	fillMem(t, o)
	for path, f := range d.files {
		if strings.HasSuffix(path, segment.Suffix) {
			f.data[1] ^= 4
		}
	}
	d.hook(func(op, path string) error {
		if op == "write" && filepath.Ext(path) == segment.Suffix {
			return unix.EIO
		}
		return nil
	})
	s := watchCap(t, o).of(openTest(t, o))
	d.before.Store(nil)
	awaitRebuild(t, s)
	var frozen *segment.Segment
	for _, g := range s.space.AllSegments() {
		if g.Frozen && len(s.table.Describe(g.Range(), nil)) > 0 {
			frozen = g
		}
	}
	if frozen == nil {
		t.Fatal("no segment is frozen")
	}
	pinned := firstRecord(t, s, frozen)
	s.table.PinSlot(pinned)
	if !s.reclaim.Retire(frozen, nil) {
		t.Fatal("cannot be given up")
	}
	s.reclaim.WakeShrinker()
	settle(t, s)
	checkAccounting(t, s)
	s.table.Unpin(pinned)
	mustWrite(t, s, damageChain(openNamespace(t, s, "a"), 7000, 30))
	checkAccounting(t, s)
}

// A segment that gets its slots back while the journal has failed does not list those twice
// whose deletion the journal is owed.
func TestSlotsComeBackOnceAfterTheJournalFailed(t *testing.T) {
	var fail atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if fail.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			return unix.EIO
		}
		return nil
	})
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, errorfs.Wrap(j, inject))
	s := watchCap(t, memOptions(d, j)).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	mustWrite(t, s, chainOf(ns, 1, 30))
	settle(t, s)
	g := s.space.AllSegments()[0]
	if !s.reclaim.Retire(g, nil) {
		t.Fatal("cannot be given up")
	}
	// A drop and a restore in the batch that fails.
	_, found, ok := s.table.PinSlot(firstRecord(t, s, g))
	if !ok {
		t.Fatal("no record")
	}
	s.table.Unpin(found.Ref)
	fail.Store(true)
	for s.Sync(t.Context()) == nil {
	}
	newChecker(s, false).drop(&dropJob{removal: removal{ref: found.Ref, seq: found.Seq}})
	restore := &segment.EvictJob{Segment: g, Restore: true}
	s.evict(restore)
	fail.Store(false)
	awaitJournal(t, s, 0)
	writeUntilDone(t, s, chainOf(ns, 2, 5))
	for range 1000 {
		if s.Stats().RetiringSegments == 0 {
			break
		}
		s.reclaim.WakeShrinker()
		time.Sleep(time.Millisecond)
	}
	settle(t, s)
	checkAccounting(t, s)
	if errors.Is(restore.Err, store.ErrClosed) {
		t.Fatal(restore.Err)
	}
}

func firstRecord(t *testing.T, s *Store, g *segment.Segment) index.Ref {
	t.Helper()
	for ref := g.Base; ref < g.Base+index.Ref(g.Slots); ref++ {
		if _, _, ok := s.table.PinSlot(ref); ok {
			s.table.Unpin(ref)
			return ref
		}
	}
	t.Fatal("no record")
	return index.NoRef
}
