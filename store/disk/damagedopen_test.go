package disk

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk/recovery"
	"github.com/kvconn/kvconn/store/disk/segment"
	"golang.org/x/sys/unix"
)

// TestEveryNthOperationFailsWhileADamagedStoreOpens lets each operation of the disk fail in
// turn while a store is repaired, and repairs it again afterwards.
func TestEveryNthOperationFailsWhileADamagedStoreOpens(t *testing.T) {
	t.Parallel()
	step := int64(7)
	if longTest() {
		step = 1
	}
	first := seed.Of(t)
	for _, fault := range []error{unix.EIO, unix.ENOSPC} {
		for n := int64(1); ; n += step {
			d, j := newMemDisk(), newJournalFS()
			records := fillMem(t, memOptions(d, j))
			damageMem(d, rand.New(rand.NewPCG(first, uint64(n))))
			empty := newJournalFS()
			before, count := failNth(n, fault)
			d.hook(before)
			o := memOptions(d, empty)
			w := watchCap(t, o)
			if s, err := Open(context.Background(), o); err == nil {
				awaitRebuild(t, w.of(s))
				w.of(nil)
				_ = s.Close()
			}
			reached := count() >= n
			d.before.Store(nil)
			s := w.of(openTest(t, o))
			awaitRebuild(t, s)
			missing := 0
			for _, err := range readAll(t, s, records) {
				if err != nil {
					missing++
				}
			}
			if missing > 1 {
				t.Errorf("%v at operation %d: %d of %d records are gone; %q", fault, n, missing, len(records), s.Stats().Warnings)
			}
			checkAccounting(t, s)
			w.stop()
			if t.Failed() || !reached {
				break
			}
		}
	}
}

// TestEveryNthJournalOperationFailsWhileADamagedStoreOpens does the same to the writes of the
// journal that is made again.
func TestEveryNthJournalOperationFailsWhileADamagedStoreOpens(t *testing.T) {
	step := int32(5)
	if longTest() {
		step = 1
	}
	for n := int32(0); ; n += step {
		d, j := newMemDisk(), newJournalFS()
		records := fillMem(t, memOptions(d, j))
		empty := newJournalFS()
		var seen atomic.Int32
		inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && seen.Add(1) == n+1 {
				return errorfs.ErrInjected
			}
			return nil
		})
		w := watchCap(t, memOptions(d, empty))
		if s, err := Open(context.Background(), memOptions(d, errorfs.Wrap(empty, inject))); err == nil {
			_ = s.Close()
		}
		w.stop()
		reached := seen.Load() > n
		left := empty.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
		o := memOptions(d, left)
		w = watchCap(t, o)
		s := w.of(openTest(t, o))
		awaitRebuild(t, s)
		mustRead(t, s, records)
		checkAccounting(t, s)
		w.stop()
		if t.Failed() {
			t.Fatalf("at operation %d", n)
		}
		if !reached {
			return
		}
	}
}

func fillMem(t *testing.T, o Options) []testRecord {
	t.Helper()
	s, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	records := damageChain(openNamespace(t, s, "a"), 1, 60)
	mustWrite(t, s, records)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return records
}

// damageMem loses FORMAT and the header of a segment.
func damageMem(d *memDisk, g *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, filepath.Join("/store", recovery.FormatFile))
	for path, f := range d.files {
		if strings.HasSuffix(path, segment.Suffix) {
			f.data[g.IntN(64)] ^= 4
			return
		}
	}
}
