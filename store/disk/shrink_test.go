package disk

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
)

// ofSize returns a chain of records with payloads of that size.
func ofSize(ns connector.NamespaceDigest, chain, n, bytes int) []testRecord {
	out := chainOf(ns, chain, n)
	for i := range out {
		out[i].Bytes = bytes
	}
	return out
}

const otherPayload = 40 << 10

// twoSizes opens a store of 12 MiB for namespaces a and b, whose records have two sizes, and fills
// it with those of a.
func twoSizes(t *testing.T, slotWait time.Duration) (d *memDisk, s *Store, a, b connector.NamespaceDigest) {
	t.Helper()
	d = newMemDisk()
	o := memOptions(d, newJournalFS())
	o.MaxBytes, o.SlotWait = 12<<20, slotWait
	s = watchCap(t, o).of(openTest(t, o))
	a, b = openNamespace(t, s, "a"), openNamespace(t, s, "b")
	for chain := range 20 {
		_ = writeAll(t, s, chainOf(a, chain, 20)) // some may find no slot in time
	}
	return d, s, a, b
}

// Defect 6: 300 ms of failing fdatasync with two payload sizes in use evicted the whole
// cache, and all writes failed until a restart.
func TestFailingBarriersRetireOneSegmentAtMost(t *testing.T) {
	t.Parallel()
	d, s, a, b := twoSizes(t, 20*time.Millisecond)
	settle(t, s)
	before := s.Stats()
	d.hook(func(op, _ string) error {
		if op == "sync" {
			return unix.EIO
		}
		return nil
	})
	for chain := range 30 {
		_ = writeAll(t, s, ofSize(b, chain, 10, otherPayload))
	}
	d.before.Store(nil)
	after := s.Stats()
	if lost, most := before.Records-after.Records, before.Records/int64(before.Segments)+before.Records/4; lost > most {
		t.Errorf("%d of %d records in %d segments are gone", lost, before.Records, before.Segments)
	}
	for chain := range 10 {
		writeUntilDone(t, s, ofSize(b, 100+chain, 10, otherPayload))
		writeUntilDone(t, s, chainOf(a, 100+chain, 10))
	}
	settle(t, s)
	checkAccounting(t, s)
}

// Defect 7: a lower cap made the daemon fail to start, several times.
func TestLowerCapOpensAtOnce(t *testing.T) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.MaxBytes = 48 << 20
	var log testlog.Text
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := range 80 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		o.MaxBytes /= 2
		o.MaxBytes = max(o.MaxBytes, MinMaxBytes)
		var err error
		if s, err = Open(context.Background(), o); err != nil {
			t.Fatalf("cap of %d: %v", o.MaxBytes, err)
		}
		if st := s.Stats(); st.PhysicalBytes > o.MaxBytes || st.Records == 0 {
			t.Errorf("%d records in %d bytes under a cap of %d", st.Records, st.PhysicalBytes, o.MaxBytes)
		}
		if text := log.String(); !strings.Contains(text, "records were evicted") {
			t.Errorf("nothing is said of evicted records:\n%s", text)
		}
		ns = openNamespace(t, s, "a")
		mustWrite(t, s, chainOf(ns, 1000, 10))
		mustRead(t, s, chainOf(ns, 1000, 10))
		settle(t, s)
		checkAccounting(t, s)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// retireAndPin gives up a segment and pins a record of it after it was chosen and before its
// records are removed: the committer is held up meanwhile.
func retireAndPin(t *testing.T, s *Store) (unpin func()) {
	t.Helper()
	blocked, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	r := chainOf(openNamespace(t, s, "a"), 19, 1)[0] // it is there: no slot is needed
	op := &store.WriteOp{Record: store.Record{ID: r.ID}, Payload: r.payload()}
	if _, err := s.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(blocked); <-release }); err != nil {
		t.Fatal(err)
	}
	<-blocked
	for _, g := range s.space.InUse() {
		s.reclaim.Retire(g, nil)
		s.reclaim.WakeShrinker()
		for ref := g.Base; ref < g.Base+index.Ref(g.Slots); ref++ {
			if _, _, ok := s.table.PinSlot(ref); ok {
				return func() { s.table.Unpin(ref) }
			}
		}
	}
	t.Fatal("no segment can be given up")
	return nil
}

// Defect 11: one lease of one record stopped eviction for all sizes.
func TestPinnedRecordOfARetiredSegmentHoldsNobodyUp(t *testing.T) {
	_, s, a, b := twoSizes(t, time.Minute)
	settle(t, s)
	unpin := retireAndPin(t, s)
	// The pin is held: neither size waits for it.
	mustWrite(t, s, ofSize(b, 1, 20, otherPayload))
	mustWrite(t, s, chainOf(a, 200, 100))
	settle(t, s)
	unpin()
	for chain := range 10 {
		mustWrite(t, s, ofSize(b, 10+chain, 20, otherPayload))
		mustWrite(t, s, chainOf(a, 300+chain, 20))
	}
	settle(t, s)
	checkAccounting(t, s)
}

// Defect 12: leases that ran out did not end while a segment was being given up.
func TestLeasesEndWhileTheStoreShrinks(t *testing.T) {
	t.Parallel()
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	s := openTest(t, o)
	ns := openNamespace(t, s, "a")
	for chain := range 20 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	for chain := range 20 {
		if n, _ := s.Lookup(ns, []connector.Shard{0}, keysOf(chainOf(ns, chain, 20)), 100*time.Millisecond); n == 0 {
			t.Fatal("nothing to hold")
		}
	}
	// Something else in the directory takes half of the cap.
	if err := d.WriteFileAtomic("/store/other", make([]byte, 8<<20)); err != nil {
		t.Fatal(err)
	}
	s.reclaim.Measure(true)
	s.reclaim.WakeShrinker()
	for range 20_000 {
		if st := s.Stats(); st.Leases == 0 && st.PhysicalBytes <= st.MaxBytes {
			settle(t, s)
			checkAccounting(t, s)
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d leases are held, %d bytes above the cap", s.Stats().Leases, s.Stats().PhysicalBytes-s.Stats().MaxBytes)
}

// A file that cannot be removed stays counted until it can.
func TestFileThatCannotBeRemovedStaysCounted(t *testing.T) {
	t.Parallel()
	d, s, _, b := twoSizes(t, 20*time.Millisecond)
	d.hook(func(op, _ string) error {
		if op == "remove" {
			return unix.EBUSY
		}
		return nil
	})
	for chain := range 20 {
		_ = writeAll(t, s, ofSize(b, chain, 10, otherPayload))
	}
	if st := s.Stats(); st.SetAsideBytes == 0 {
		t.Error("nothing is waiting to be removed")
	}
	d.before.Store(nil)
	s.reclaim.WakeShrinker()
	writeUntilDone(t, s, ofSize(b, 100, 10, otherPayload))
	settle(t, s)
	if st := s.Stats(); st.SetAsideBytes != 0 {
		t.Errorf("%d bytes are still set aside", st.SetAsideBytes)
	}
	checkAccounting(t, s)
}

// passing is a fault that every operation of one kind has for a while.
type passing struct {
	op    string
	fault error         // nil: it is slow
	delay time.Duration // of one that is slow
}

// TestPassingFaultsPass has each operation of the disk fail or be slow for a while, with
// two payload sizes and eviction. When it is over, both sizes can be written and read
// without a restart, the accounting is exact, and the cap was never passed. A quarter of
// the faults are tried each time.
func TestPassingFaultsPass(t *testing.T) {
	t.Parallel()
	var faults []passing
	for _, op := range []string{"open", "write", "read", "allocate", "sync", "syncdir", "remove", "rename", "statfs"} {
		for _, err := range []error{unix.EIO, unix.ENOSPC, unix.EMFILE} {
			faults = append(faults, passing{op: op, fault: err})
		}
		faults = append(faults, passing{op: op, delay: 20 * time.Millisecond})
	}
	first := seed.Of(t)
	for i, f := range faults {
		if !longTest() && (i+i/4)%4 != int(first%4) {
			continue
		}
		name := fmt.Sprintf("%s slow", f.op)
		if f.fault != nil {
			name = fmt.Sprintf("%s %s", f.op, f.fault)
		}
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) { f.run(t, rand.New(rand.NewPCG(first, uint64(i)))) })
	}
}

func (f passing) run(t *testing.T, g *rand.Rand) {
	d, j := newMemDisk(), newJournalFS()
	o := memOptions(d, j)
	o.MaxBytes, o.SlotWait = 10<<20, 10*time.Millisecond
	w := watchCap(t, o)
	s := w.of(openTest(t, o))
	a, b := openNamespace(t, s, "a"), openNamespace(t, s, "b")
	chain := 0
	work := func(rounds int) {
		for range rounds {
			chain++
			_ = writeAll(t, s, chainOf(a, chain, 5+g.IntN(10)))
			_ = writeAll(t, s, ofSize(b, chain, 1+g.IntN(10), otherPayload))
			back := g.IntN(chain) + 1
			for _, err := range readAll(t, s, chainOf(a, back, 5)) {
				if errors.Is(err, store.ErrCorrupt) || errors.Is(err, store.ErrMismatch) {
					t.Errorf("chain %d: %v", back, err)
				}
			}
		}
	}
	work(20)
	var met atomic.Int64
	d.hook(func(op, _ string) error {
		if op != f.op {
			return nil
		}
		met.Add(1)
		time.Sleep(f.delay)
		return f.fault
	})
	records := s.Stats().Records
	rounds := 15
	if longTest() {
		rounds = 150
	}
	work(rounds)
	d.before.Store(nil)
	if left := s.Stats().Records; left < records/2 {
		t.Errorf("%d of %d records are left of the fault", left, records)
	}
	last := ofSize(b, chain+1, 20, otherPayload)
	for _, records := range [][]testRecord{chainOf(a, chain+1, 20), last} {
		writeUntilDone(t, s, records)
		mustRead(t, s, records)
	}
	settle(t, s)
	checkAccounting(t, s)
	w.of(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o.journalFS = j.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	again := openTest(t, o)
	mustRead(t, again, last)
	checkAccounting(t, again)
}
