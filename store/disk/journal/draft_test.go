package journal

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

func testOptions(fs vfs.FS) Options {
	return Options{Dir: "/j", FS: fs, CacheBytes: 1 << 20, MemTableBytes: MinMemTableBytes, Logger: slog.New(slog.DiscardHandler)}
}

// fill writes what a store would into a draft: n records, a segment, a namespace, a size
// and a value that says which draft it was.
func fill(d *Draft, n uint32, name string) error {
	for i := range n {
		r := testRecord(i)
		r.Location = Location{1, i}
		if err := d.PutRecord(&r); err != nil {
			return err
		}
	}
	d.PutSegment(Segment{1, n, 8192})
	d.PutNamespace(Namespace{ID: 1})
	d.PutSize(1, 2, 4096)
	d.PutMeta("name", []byte(name))
	return d.Finish()
}

// check returns the name of the generation and the number of its records.
func check(t *testing.T, j *Journal) (name string, records int) {
	t.Helper()
	v, err := j.Meta("name")
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Records(0, 1<<32-1, func(*Record) error { records++; return nil }, func(err error) { t.Error(err) }); err != nil {
		t.Fatal(err)
	}
	return string(v), records
}

func TestDraftTakesThePlaceOfAFailedJournal(t *testing.T) {
	mem := vfs.NewCrashableMem()
	j := openTest(t, mem)
	r := testRecord(1)
	b := j.NewBatch()
	if err := errors.Join(j.PutMeta("name", []byte("first")), b.PutRecord(&r), b.Commit(), j.Barrier()); err != nil {
		t.Fatal(err)
	}
	snapshot, err := j.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	j.Abandon("test")
	if err := j.PutMeta("name", nil); !errors.Is(err, ErrFailed) {
		t.Fatal(err)
	}
	if _, n := func() (string, int) {
		n := 0
		err := j.Records(0, 1<<32-1, func(*Record) error { n++; return nil }, func(error) {})
		if err != nil {
			t.Error(err)
		}
		return "", n
	}(); n != 1 {
		t.Errorf("%d records in a failed journal, want 1", n)
	}
	generation := j.Generation()
	d, err := j.Begin()
	if err != nil {
		t.Fatal(err)
	}
	const records = 10_000
	if err := fill(d, records, "second"); err != nil {
		t.Fatal(err)
	}
	j.Replace(d)
	if j.Generation() == generation {
		t.Error("same generation")
	}
	// The batch of the old generation goes on with the new one.
	r.Location = Location{2, 1}
	if err := errors.Join(b.PutRecord(&r), b.Commit(), j.Barrier()); err != nil {
		t.Fatal(err)
	}
	if name, n := check(t, j); name != "second" || n != records+1 {
		t.Errorf("%s with %d records", name, n)
	}
	if err := snapshot.Records(func(*Record) error { return nil }); err != nil && !errors.Is(err, ErrFailed) {
		t.Errorf("snapshot: %v", err)
	}
	if err := snapshot.Close(); err != nil {
		t.Error(err)
	}
	after := openTest(t, mem.CrashClone(vfs.CrashCloneCfg{}))
	if name, n := check(t, after); name != "second" || n != records+1 {
		t.Errorf("after a crash: %s with %d records", name, n)
	}
	if err := errors.Join(after.Close(), j.Close()); err != nil {
		t.Error(err)
	}
}

// TestCrashAtEveryStepOfADraft: the old generation is there or the whole new one.
func TestCrashAtEveryStepOfADraft(t *testing.T) {
	seen := map[string]int{}
	for step, last := int64(1), false; !last; step++ {
		mem := vfs.NewCrashableMem()
		var on atomic.Bool
		var n atomic.Int64
		var clone atomic.Pointer[vfs.MemFS]
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if on.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite && n.Add(1) == step {
				clone.Store(mem.CrashClone(vfs.CrashCloneCfg{}))
			}
			return nil
		})
		j := openTest(t, errorfs.Wrap(mem, inject))
		if err := errors.Join(j.PutMeta("name", []byte("old")), j.Barrier()); err != nil {
			t.Fatal(err)
		}
		on.Store(true)
		j.Abandon("test")
		d, err := j.Begin()
		if err == nil {
			err = fill(d, 50, "new")
		}
		if err != nil {
			t.Fatal(err)
		}
		j.Replace(d)
		err = j.Close()
		on.Store(false)
		if err != nil {
			t.Fatal(err)
		}
		c := clone.Load()
		if last = c == nil; last {
			break
		}
		after := openTest(t, c)
		name, records := check(t, after)
		seen[name]++
		if want := map[string]int{"old": 0, "new": 50}[name]; name == "" || records != want {
			t.Errorf("step %d: %q with %d records", step, name, records)
		}
		if err := after.Close(); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
	}
	if seen["old"] == 0 || seen["new"] == 0 {
		t.Errorf("%v", seen)
	}
}

// TestDraftFailsCleanly fails each operation of a draft in turn: afterwards another one is
// written without trouble.
func TestDraftFailsCleanly(t *testing.T) {
	for _, fault := range []error{unix.EIO, unix.ENOSPC, unix.EMFILE} {
		for step, done := int64(1), false; !done; step++ {
			var on atomic.Bool
			var n atomic.Int64
			mem := vfs.NewMem()
			inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
				if on.Load() && n.Add(1) == step && op.Kind != errorfs.OpFileClose {
					return &os.PathError{Op: "test", Path: op.Path, Err: fault}
				}
				return nil
			})
			j := openTest(t, errorfs.Wrap(mem, inject))
			if err := errors.Join(j.PutMeta("name", []byte("old")), j.Barrier()); err != nil {
				t.Fatal(err)
			}
			j.Abandon("test")
			on.Store(true)
			d, err := j.Begin()
			if err == nil {
				if err = fill(d, 50, "new"); err != nil {
					d.Abort()
				}
			}
			on.Store(false)
			done = n.Load() < step
			if err != nil {
				if d, err = j.Begin(); err == nil {
					err = fill(d, 50, "new")
				}
				if err != nil {
					t.Fatalf("%v at step %d: %v", fault, step, err)
				}
			}
			j.Replace(d)
			if name, n := check(t, j); name != "new" || n != 50 {
				t.Errorf("%v at step %d: %s with %d records", fault, step, name, n)
			}
			if err := errors.Join(j.PutMeta("a", nil), j.Barrier()); err != nil && !strings.Contains(err.Error(), fault.Error()) {
				t.Errorf("%v at step %d: %v", fault, step, err)
			}
			if err := j.Close(); err != nil {
				t.Errorf("%v at step %d: close: %v", fault, step, err)
			}
		}
	}
}

func TestGenerationsLeftBehindAreRemoved(t *testing.T) {
	mem := vfs.NewMem()
	j := openTest(t, mem)
	for range 3 {
		j.Abandon("test")
		d, err := j.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := fill(d, 5, "x"); err != nil {
			t.Fatal(err)
		}
		j.Replace(d)
	}
	if err := errors.Join(j.Close(), mem.MkdirAll("/j/gen-9", 0o755)); err != nil {
		t.Fatal(err)
	}
	after := openTest(t, mem)
	defer func() { _ = after.Close() }()
	names, err := mem.List("/j")
	if name, n := check(t, after); err != nil || len(names) != 1 || name != "x" || n != 5 {
		t.Errorf("%v, %v; %s with %d records", names, err, name, n)
	}
	// What recovery begins is found as well.
	d, err := Begin(testOptions(mem))
	if err != nil {
		t.Fatal(err)
	}
	if err := fill(d, 7, "y"); err != nil {
		t.Fatal(err)
	}
	k := d.Journal()
	if name, n := check(t, k); name != "y" || n != 7 {
		t.Errorf("%s with %d records", name, n)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

// What is left of a generation since the disk failed when it was replaced goes with the next one: it
// counts under the cap as long as it is there.
func TestGenerationThatIsLeftGoesWithTheNext(t *testing.T) {
	mem := vfs.NewMem()
	var failing atomic.Bool
	failed := make(chan struct{})
	var once sync.Once
	j := openTest(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && (op.Kind == errorfs.OpList || op.Kind == errorfs.OpRemoveAll) {
			once.Do(func() { close(failed) })
			return &os.PathError{Op: "test", Path: op.Path, Err: unix.EIO}
		}
		return nil
	})))
	for range 3 {
		j.Abandon("test")
		d, err := j.Begin()
		if err == nil {
			err = fill(d, 5, "x")
		}
		if err != nil {
			t.Fatal(err)
		}
		failing.Store(j.Generation() == 2)
		j.Replace(d)
		if failing.Load() {
			<-failed
			failing.Store(false)
		}
	}
	var names []string
	wait.For(t, "one generation is left", func() (one bool) {
		var err error
		names, err = mem.List("/j")
		return err == nil && len(names) == 1
	})
	if name, n := check(t, j); name != "x" || n != 5 || names[0] != "gen-3" {
		t.Errorf("%v; %s with %d records", names, name, n)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// TestDraftFitsItsReserve: what a new generation occupies is part of ReservedBytes.
func TestDraftFitsItsReserve(t *testing.T) {
	const records = 50_000
	mem := vfs.NewMem()
	d, err := Begin(testOptions(mem))
	if err != nil {
		t.Fatal(err)
	}
	g := rand.New(rand.NewPCG(1, 1))
	for i := range uint32(records) {
		r := testRecord(i)
		r.Location = Location{1, i}
		for k := range r.Key {
			r.Key[k], r.Parent[k], r.Scope[k] = byte(g.Uint32()), byte(g.Uint32()), byte(g.Uint32())
		}
		if err := d.PutRecord(&r); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Finish(); err != nil {
		t.Fatal(err)
	}
	j := d.Journal()
	names, err := mem.List("/j/gen-1")
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for _, name := range names {
		info, err := mem.Stat("/j/gen-1/" + name)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	more := ReservedBytes(MinMemTableBytes, records) - ReservedBytes(MinMemTableBytes, 0)
	if total > more/5+2<<20 {
		t.Errorf("%d bytes, reserved are %d", total, more/5+2<<20)
	}
	t.Logf("%.1f bytes a record", float64(total)/records)
	if err := j.Close(); err != nil {
		t.Error(err)
	}
}

// A goroutine that is parked says why before anyone can meet it: who opened a database saw
// no error else, and used one that was not there.
func TestParkedGenerationHasFailed(t *testing.T) {
	for range 2000 {
		g := newGeneration(testOptions(vfs.NewMem()), 1)
		go g.park(errors.New("gone"))
		if <-g.parked; g.failure() == nil {
			t.Fatal("parked and not failed")
		}
	}
}
