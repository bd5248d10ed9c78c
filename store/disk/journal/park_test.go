package journal

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Whoever is told that a goroutine of Pebble stays for good finds the generation failed: an
// opening went on with a database that was not there, and the process ended.
func TestParkedMeansFailed(t *testing.T) {
	for range 2000 {
		g := newGeneration(Options{FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler)}, 0)
		j := &Journal{}
		j.gen.Store(g)
		var watcher sync.WaitGroup
		watcher.Go(func() {
			<-g.parked
			if !errors.Is(g.failure(), ErrFailed) {
				t.Error("parked, and not failed")
			}
		})
		j.Abandon("test")
		watcher.Wait()

		g = newGeneration(g.opts, 0)
		watcher.Go(func() {
			<-g.parked
			if !errors.Is(g.failure(), ErrFailed) {
				t.Error("parked, and not failed")
			}
		})
		go g.park(errors.New("test"))
		watcher.Wait()
	}
}

// A directory that cannot be listed in the middle of an opening ended the process: Pebble took
// its caches from under the compaction that the opening had begun.
func TestListThatFailsInAnOpeningDoesNotEndTheProcess(t *testing.T) {
	mem := vfs.NewCrashableMem()
	for range 6 { // each opening leaves a table, so that the next has something to compact
		j := openTest(t, mem)
		b := j.NewBatch()
		for i := range uint32(2000) {
			r := testRecord(i)
			if err := b.PutRecord(&r); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(b.Commit(), j.Barrier()); err != nil {
			t.Fatal(err)
		}
		mem = mem.CrashClone(vfs.CrashCloneCfg{})
	}
	lists := int64(0)
	for fail := int64(0); fail <= lists; fail++ { // at first none
		var seen atomic.Int64
		fs := errorfs.Wrap(mem.CrashClone(vfs.CrashCloneCfg{}), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind == errorfs.OpList && seen.Add(1) == fail {
				return errors.New("the disk fails")
			}
			return nil
		}))
		o := Options{Dir: "/j", FS: fs, CacheBytes: 1 << 20, MemTableBytes: MinMemTableBytes, Logger: slog.New(slog.DiscardHandler)}
		j, err := Open(o)
		if lists = max(lists, seen.Load()); err != nil {
			continue
		}
		if err := j.Close(); err != nil {
			t.Errorf("list %d: %v", fail, err)
		}
	}
	if lists < 3 {
		t.Errorf("%d lists in an opening: none comes after the logs are read", lists)
	}
}
