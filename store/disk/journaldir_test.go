package disk

import (
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"
)

// A directory of the journal on a bad sector, read at any step of the opening, stopped every start
// as if nothing could be written; the records' headers are intact.
func TestDirectoryOfTheJournalThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for what, kind := range map[string]errorfs.OpKind{"list": errorfs.OpList, "open": errorfs.OpOpenDir} {
		t.Run(what, func(t *testing.T) {
			for nth, reached := int64(0), true; reached; nth++ { // at first each one fails
				seen := testUnreadableDirectory(t, kind, nth)
				reached = seen >= nth
			}
		})
	}
}

func testUnreadableDirectory(t *testing.T, kind errorfs.OpKind, nth int64) (seen int64) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	first := openTest(t, o)
	records := chainOf(openNamespace(t, first, "m"), 1, 10)
	mustWrite(t, first, records)
	before := first.journal.Generation()
	first.journal.Abandon("test") // what comes after it has a directory of its own
	awaitJournal(t, first, before)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var reads atomic.Int64
	o.journalFS = errorfs.Wrap(j, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == kind && strings.HasSuffix(op.Path, "gen-1") {
			if n := reads.Add(1); nth == 0 || n == nth {
				return &os.PathError{Op: "test", Path: op.Path, Err: unix.EIO}
			}
		}
		return nil
	}))
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("directory cannot be read for the %dth time: %v", nth, err)
	}
	seen = reads.Load()
	awaitRebuild(t, s)
	openNamespace(t, s, "m")
	mustRead(t, s, records)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return seen
}
