package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/quota"
)

// testSlot is what a test's record takes on disk.
const testSlot = testPayload + 4096

func withQuotas(o Options, records map[string]int64, fallback int64) Options {
	o.Quotas = quota.Limits{Tenants: make(map[tenants.ID]int64), Default: fallback * testSlot}
	for salt, n := range records {
		o.Quotas.Tenants[tenantOf(salt)] = n * testSlot
	}
	return o
}

// A tenant's own oldest records make room for its new ones, in all namespaces, and others keep theirs.
func TestATenantOverItsQuotaLosesItsOwnOldestRecords(t *testing.T) {
	s := openTest(t, withQuotas(testOptions(t.TempDir()), map[string]int64{"a": 100}, 0))
	m, n := openNamespace(t, s, "m"), openNamespace(t, s, "n")
	other := tenantChain(m, "b", 1, 150)
	mustWrite(t, s, other) // oldest of all
	old, kept := tenantChain(m, "a", 2, 50), tenantChain(n, "a", 3, 50)
	mustWrite(t, s, old)
	mustWrite(t, s, kept)
	lookup(s, n, kept)
	newer := tenantChain(n, "a", 4, 40)
	mustWrite(t, s, newer)
	mustRead(t, s, kept)
	mustRead(t, s, newer)
	mustRead(t, s, other)
	left := lookup(s, m, old)
	if have := recordsOf(t, s, tenantOf("a")); have > 100 || have < 95 || int64(left) != have-90 {
		t.Errorf("%d records, %d of the oldest", have, left)
	}
	if st := s.Stats(); st.Quota.Evicted != uint64(50-left) || st.Evicted != 0 || st.Quota.Refused != 0 || st.Quota.Waiting != 0 {
		t.Errorf("%+v", st.Quota)
	}
	mustBalance(t, s)
}

// However many write at one time, the index never has more of a tenant than its quota, and what the writes take counts.
func TestAQuotaIsNeverPassed(t *testing.T) {
	const most, each = 40, 300
	o := withQuotas(testOptions(t.TempDir()), map[string]int64{"a": most}, most/2)
	o.MaxBytes = 32 << 20
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	stop, watched := make(chan struct{}), make(chan error)
	go func() {
		defer close(watched)
		for {
			for _, have := range s.Tenants() {
				if limit := o.Quotas.Of(have.ID); limit > 0 && have.Bytes > limit {
					watched <- fmt.Errorf("tenant %v has %d bytes, its quota is %d", have.ID, have.Bytes, limit)
					return
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var writers sync.WaitGroup
	for i, salt := range []string{"a", "a", "b", "c", "", "c"} {
		writers.Go(func() {
			for k := range each / 10 {
				for _, err := range writeAll(t, s, tenantChain(ns, salt, 100+100*i+k, 10)) {
					if err != nil {
						t.Errorf("tenant %q: %v", salt, err)
					}
				}
				if k%3 == 0 {
					_, id := s.Lookup(ns, []connector.Shard{0}, keysOf(tenantChain(ns, salt, 100+100*i+k, 10)), time.Minute)
					time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
					s.Release(id)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	if err := <-watched; err != nil {
		t.Error(err)
	}
	for salt, limit := range map[string]int64{"a": most, "b": most / 2, "c": most / 2} {
		if have := recordsOf(t, s, tenantOf(salt)); have > limit || have < limit-2 {
			t.Errorf("tenant %s has %d records, its quota is %d", salt, have, limit)
		}
	}
	if have := recordsOf(t, s, tenants.ID{}); have != each {
		t.Errorf("%d of %d records without a tenant", have, each)
	}
	mustBalance(t, s)
}

// Records that loads hold are not evicted: a write waits for them, and is refused in the end. Others are not held up.
func TestAWriteWaitsForRoomInItsQuota(t *testing.T) {
	o := withQuotas(testOptions(t.TempDir()), map[string]int64{"a": 10}, 0)
	o.SlotWait = 50 * time.Millisecond
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	held := tenantChain(ns, "a", 1, 10)
	// Making a segment may take longer than the short time.
	written := func(records []testRecord) bool { return len(writeSome(t, s, records)) == len(records) }
	wait.For(t, "all is written", func() bool { return written(held) })
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(held), time.Minute)
	if n != len(held) {
		t.Fatal(n)
	}
	more := tenantChain(ns, "a", 2, 3)
	for i, err := range writeAll(t, s, more) {
		if !errors.Is(err, store.ErrBusy) {
			t.Errorf("write %d: %v", i, err)
		}
	}
	if n := s.Stats().Quota.Refused; n != 3 {
		t.Errorf("%d refused", n)
	}
	wait.For(t, "all of another tenant is written", func() bool { return written(tenantChain(ns, "b", 3, 20)) })
	s.Release(lease)
	wait.For(t, "a write finds room", func() bool { return writeAll(t, s, more)[0] == nil })
	if have := recordsOf(t, s, tenantOf("a")); have > 10 {
		t.Errorf("%d records", have)
	}
}

func TestARecordLargerThanItsQuotaIsRefusedAtOnce(t *testing.T) {
	o := testOptions(t.TempDir())
	o.Quotas.Tenants = map[tenants.ID]int64{tenantOf("a"): testSlot - 1}
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	if err := writeAll(t, s, tenantChain(ns, "a", 1, 1))[0]; !errors.Is(err, store.ErrTooLarge) {
		t.Error(err)
	}
	if err := (&Options{Dir: "d", Quotas: quota.Limits{Default: -1}}).Validate(); err == nil {
		t.Error("a negative quota passes")
	}
}

// A quota that is new or lower is kept from the start on, whatever the crash before left.
func TestAQuotaHoldsAfterACrash(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	ns := openNamespace(t, s, "m")
	old, newer, other := tenantChain(ns, "a", 1, 60), tenantChain(ns, "a", 2, 30), tenantChain(ns, "b", 3, 60)
	mustWrite(t, s, old)
	mustWrite(t, s, newer)
	mustWrite(t, s, other)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	var journalAfter *vfs.MemFS
	crashed := d.crash(seed.Random(t, 0), func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	again := openTest(t, withQuotas(memOptions(crashed, journalAfter), map[string]int64{"a": 32}, 0))
	openNamespace(t, again, "m")
	wait.For(t, "the tenant is within its quota", func() bool { return recordsOf(t, again, tenantOf("a")) <= 32 })
	mustRead(t, again, newer)
	mustRead(t, again, other)
	fresh := tenantChain(ns, "a", 4, 20)
	mustWrite(t, again, fresh)
	mustRead(t, again, fresh)
	if have := recordsOf(t, again, tenantOf("a")); have > 32 {
		t.Errorf("%d records", have)
	}
	mustBalance(t, again)
}

// A journal that fails refuses the writes that wait, and the quota holds when it works again.
func TestAQuotaHoldsThroughAFailureOfTheJournal(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	inject := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if !on.Load() || op.Kind.ReadOrWrite() != errorfs.OpIsWrite {
			return nil
		}
		return &os.PathError{Op: "test", Path: op.Path, Err: unix.EIO}
	})
	o := withQuotas(memOptions(newMemDisk(), errorfs.Wrap(newJournalFS(), inject)), map[string]int64{"a": 20}, 0)
	o.SlotWait = 100 * time.Millisecond
	s := openTest(t, o)
	ns := openNamespace(t, s, "m")
	// Slots wait for a barrier, which may take longer than the short time.
	written := func(records []testRecord) bool { return len(writeSome(t, s, records)) == len(records) }
	wait.For(t, "all is written", func() bool { return written(tenantChain(ns, "a", 1, 20)) })
	on.Store(true)
	failed, chain := 0, 100
	wait.For(t, "a write that fails", func() bool { // the journal is written now and then
		for _, err := range writeAll(t, s, tenantChain(ns, "a", chain, 10)) {
			if err != nil {
				failed++
			}
		}
		chain++
		return failed > 0
	})
	on.Store(false)
	awaitJournal(t, s, 0)
	fresh := tenantChain(ns, "a", 20, 15)
	wait.For(t, "all is written", func() bool { return written(fresh) })
	mustRead(t, s, fresh)
	if have := recordsOf(t, s, tenantOf("a")); have > 20 {
		t.Errorf("%d records", have)
	}
	mustBalance(t, s)
}
