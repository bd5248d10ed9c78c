package disk

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// tenantChain is a chain of a tenant's records.
func tenantChain(ns connector.NamespaceDigest, salt string, chain, n int) []testRecord {
	records := chainOf(ns, chain, n)
	for i := range records {
		records[i].Scope = connector.Scope{Salt: salt, LoRA: "adapter"}.Digest()
	}
	return records
}

func tenantOf(salt string) tenants.ID { return tenants.Of(connector.Scope{Salt: salt}.Digest()) }

// recordsOf is how many records the store says that a tenant has. It fails the test if the bytes do not fit.
func recordsOf(t *testing.T, s *Store, id tenants.ID) int64 {
	t.Helper()
	for _, have := range s.Tenants() {
		if have.ID == id {
			if want := have.Records * (testPayload + 4096); have.Bytes != want {
				t.Errorf("tenant %v has %d bytes, want %d", id, have.Bytes, want)
			}
			return have.Records
		}
	}
	return 0
}

func TestTenantsAreKnownHoweverTheStoreOpens(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, testOptions(dir))
	for i, model := range []string{"m", "n"} {
		ns := openNamespace(t, s, model)
		mustWrite(t, s, tenantChain(ns, "a", 10+i, 20))
		mustWrite(t, s, tenantChain(ns, "b", 20+i, 5))
		mustWrite(t, s, chainOf(ns, 30+i, 2))
	}
	check := func(s *Store, how recovery.Recovery) {
		t.Helper()
		wait.For(t, "the store has found its records", func() bool { return s.rebuild.FindsAll() })
		if s.state.Recovered != how {
			t.Errorf("recovered from %v, not from %v", s.state.Recovered, how)
		}
		a, b, none := recordsOf(t, s, tenantOf("a")), recordsOf(t, s, tenantOf("b")), recordsOf(t, s, tenants.ID{})
		if a != 40 || b != 10 || none != 4 || len(s.Tenants()) != 3 {
			t.Errorf("%v: %d records of a, %d of b, %d of nobody, %d tenants", how, a, b, none, len(s.Tenants()))
		}
	}
	check(s, RecoveredNew)
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	reopen()
	s = openTest(t, testOptions(dir))
	check(s, RecoveredSnapshot)
	reopen()
	if err := os.Remove(filepath.Join(dir, "index.snap")); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, testOptions(dir))
	check(s, RecoveredJournal)
	reopen()
	for _, name := range []string{"index.snap", "index"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s = openTest(t, testOptions(dir))
	check(s, RecoveredHeaders)
}

// Whatever happens to process and machine right after the answer, nothing comes back; other tenants keep all.
func TestAPurgedTenantDoesNotComeBackAfterALossOfPower(t *testing.T) {
	t.Parallel()
	d, j := newMemDisk(), newJournalFS()
	s := openTest(t, memOptions(d, j))
	var gone, kept []testRecord
	for i, model := range []string{"m", "n"} {
		ns := openNamespace(t, s, model)
		gone = append(gone, tenantChain(ns, "gone", 10+i, 60)...)
		kept = append(append(kept, tenantChain(ns, "kept", 20+i, 30)...), chainOf(ns, 30+i, 10)...)
	}
	mustWrite(t, s, gone)
	mustWrite(t, s, kept)
	r, err := s.PurgeTenant(t.Context(), tenantOf("gone"), purgeWait)
	if err != nil || r.Removed != int64(len(gone)) || r.Left != 0 || r.Incomplete {
		t.Fatalf("%+v, %v", r, err)
	}
	var journalAfter *vfs.MemFS
	crashed := d.crash(seed.Random(t, 0), func() { journalAfter = j.CrashClone(vfs.CrashCloneCfg{}) })
	again := openTest(t, memOptions(crashed, journalAfter))
	for _, s := range []*Store{s, again} {
		openNamespace(t, s, "m")
		openNamespace(t, s, "n")
		for i := range gone {
			if isPresent(s, gone[i].ID) {
				t.Fatalf("record %d is there", i)
			}
		}
		mustRead(t, s, kept)
		mustBalance(t, s)
		mustWrite(t, s, gone)
		mustRead(t, s, gone)
		if n := recordsOf(t, s, tenantOf("gone")); n != int64(len(gone)) {
			t.Errorf("%d records are counted", n)
		}
	}
	if r, err := s.PurgeTenant(t.Context(), tenantOf("nobody"), purgeWait); err != nil || r.Removed != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestATenantsPurgeLeavesWhatLoadsHold(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	records := tenantChain(ns, "a", 1, 10)
	mustWrite(t, s, records)
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(records[:4]), time.Minute)
	if n != 4 {
		t.Fatal(n)
	}
	if r, err := s.PurgeTenant(t.Context(), tenantOf("a"), purgeWait); err != nil || r.Removed != 6 || r.Left != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	mustRead(t, s, records[:4])
	s.Release(lease)
	if r, err := s.PurgeTenant(t.Context(), tenantOf("a"), purgeWait); err != nil || r.Removed != 4 || r.Left != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// Look-ups of a tenant that is being purged find nothing, or a purge of a busy one would not end.
func TestLookUpsCannotHoldATenantsPurgeUp(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns := openNamespace(t, s, "m")
	held, other := tenantChain(ns, "a", 1, 10), tenantChain(ns, "b", 2, 10)
	mustWrite(t, s, held)
	mustWrite(t, s, other)
	n, lease := s.Lookup(ns, []connector.Shard{0}, keysOf(held), time.Minute)
	if n != len(held) {
		t.Fatal(n)
	}
	ended := make(chan error)
	go func() {
		_, err := s.PurgeTenant(t.Context(), tenantOf("a"), time.Minute)
		ended <- err
	}()
	wait.For(t, "the purge runs", func() bool { return s.purges.HoldsTenant(tenantOf("a")) })
	if n := lookup(s, ns, held); n != 0 {
		t.Errorf("%d blocks are found", n)
	}
	if n := lookup(s, ns, other); n != len(other) {
		t.Errorf("%d blocks of another tenant are found", n)
	}
	s.Release(lease)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := recordsOf(t, s, tenantOf("a")); n != 0 {
		t.Errorf("%d records are left", n)
	}
}

func TestHitsAndUsesAreCounted(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	ns, idle := openNamespace(t, s, "m"), openNamespace(t, s, "idle")
	records := tenantChain(ns, "a", 1, 10)
	began := time.Now()
	mustWrite(t, s, records)
	lookup(s, ns, records)
	lookup(s, ns, records[:3])
	lookup(s, ns, tenantChain(ns, "b", 2, 3))
	for _, c := range s.Contents() {
		switch {
		case c.Digest == ns && (c.Hits != 13 || c.LastUse.Before(began)):
			t.Errorf("%d hits, last use %v", c.Hits, c.LastUse)
		case c.Digest == idle && (c.Hits != 0 || !c.LastUse.IsZero()):
			t.Errorf("%d hits of nothing, last use %v", c.Hits, c.LastUse)
		}
	}
	if all := s.Tenants(); len(all) != 1 || all[0].Hits != 13 || all[0].LastHit.Before(began) {
		t.Errorf("%+v", all)
	}
}
