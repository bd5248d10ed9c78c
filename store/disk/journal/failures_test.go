package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// A disk that fails for an hour fails more often than a process may count to: a new generation
// can be written however many have failed. What each of them keeps is as ADR 3 says.
func TestAJournalIsWrittenHoweverOftenItFailed(t *testing.T) {
	const times = 150
	var on atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpRename { // the last step of opening a database
			return &os.PathError{Op: "test", Path: op.Path, Err: unix.ENOSPC}
		}
		return nil
	})
	j := openTest(t, errorfs.Wrap(vfs.NewMem(), inject))
	if err := j.PutMeta("name", []byte("old")); err != nil {
		t.Fatal(err)
	}
	j.Abandon("test")
	memory, goroutines := kept()
	on.Store(true)
	for n := range times {
		d, err := j.Begin()
		if err != nil {
			t.Fatalf("after %d failures: %v", n, err)
		}
		if err := fill(d, 5, "new"); !errors.Is(err, ErrFailed) {
			t.Fatalf("failure %d: %v", n, err)
		}
		d.Abort()
	}
	if n := j.Failures(); n != times {
		t.Errorf("%d failures", n)
	}
	on.Store(false)
	const kilobytes = 250
	more, started := kept()
	if each := (more - memory) / times / 1000; each < kilobytes*4/5 || each > kilobytes*5/2 { // the race detector doubles it
		t.Errorf("each keeps %d KB", each)
	}
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("costs about %d KB and %d goroutines", kilobytes, (started-goroutines+times/2)/times))
	d, err := j.Begin()
	if err == nil {
		err = fill(d, 5, "new")
	}
	if err != nil {
		t.Fatal(err)
	}
	j.Replace(d)
	if name, n := check(t, j); name != "new" || n != 5 {
		t.Errorf("%s with %d records", name, n)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// kept is how much memory is in use, in bytes, and how many goroutines there are.
func kept() (memory, goroutines int) {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc), runtime.NumGoroutine()
}

// Each generation that failed kept the descriptor of its lock: a disk that fails for days used
// them up.
func TestFailedGenerationsKeepNoDescriptors(t *testing.T) {
	const times = 20
	var on atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && op.Kind == errorfs.OpRename {
			return &os.PathError{Op: "test", Path: op.Path, Err: unix.ENOSPC}
		}
		return nil
	})
	j, err := Open(Options{
		Dir: t.TempDir(), FS: errorfs.Wrap(vfs.Default, inject), CacheBytes: 1 << 20, MemTableBytes: MinMemTableBytes,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	replace := func(wanted error) {
		t.Helper()
		d, err := j.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(d, 5, "new"); !errors.Is(err, wanted) {
			t.Fatal(err)
		}
		if wanted != nil {
			d.Abort()
			return
		}
		j.Replace(d)
	}
	j.Abandon("test")
	before := descriptors(t)
	for range times { // some fail while they are opened, others in use
		on.Store(true)
		replace(ErrFailed)
		on.Store(false)
		replace(nil)
		j.Abandon("test")
	}
	for descriptors(t) > before+times/2 { // those given up are closed beside the new one
		if t.Context().Err() != nil {
			t.Fatalf("%d descriptors, %d before", descriptors(t), before)
		}
		time.Sleep(time.Millisecond)
	}
	replace(nil)
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(open)
}
