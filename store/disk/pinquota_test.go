package disk

import (
	"errors"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/pins"
)

// A tenant's pinned records do not make room for its others, and do not let it pass its quota.
func TestPinnedRecordsCountInAQuota(t *testing.T) {
	dir := t.TempDir()
	quotas := func(records int64) Options {
		return withQuotas(testOptions(dir), map[string]int64{"a": records, "b": 100}, 0)
	}
	s := openTest(t, quotas(20))
	ns := openNamespace(t, s, "m")
	pinned := tenantChain(ns, "a", 1, 12)
	mustWrite(t, s, pinned)
	first, err := s.Pins().Add(t.Context(), promptPin(ns, pinned), time.Hour, false)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		mustWrite(t, s, tenantChain(ns, "a", 10+i, 5))
		if have := recordsOf(t, s, tenantOf("a")); have > 20 {
			t.Fatalf("%d records", have)
		}
	}
	mustRead(t, s, pinned)

	// Of one batch those of a tenant that is full of pins are refused alone.
	if _, err := s.Pins().Add(t.Context(), []pins.Pin{{Namespace: ns}}, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, s, tenantChain(ns, "b", 29, 1))
	for have := recordsOf(t, s, tenantOf("a")); have < 20; have++ { // what was freed beyond what was needed
		mustWrite(t, s, tenantChain(ns, "a", 50+int(have), 1))
	}
	if _, err := s.Pins().Add(t.Context(), []pins.Pin{{Namespace: ns}}, time.Hour, false); err != nil {
		t.Fatal(err)
	}
	refused, other := tenantChain(ns, "a", 30, 3), tenantChain(ns, "b", 31, 3)
	for i, err := range writeAll(t, s, append(append([]testRecord{}, refused...), other...)) {
		if i < 3 != errors.Is(err, store.ErrBusy) || i >= 3 && err != nil {
			t.Errorf("record %d: %v", i, err)
		}
	}
	if st := s.Stats(); st.Quota.Refused != 3 || st.WriteInFlightBytes != 0 {
		t.Errorf("%+v, %d bytes in flight", st.Quota, st.WriteInFlightBytes)
	}

	// A lower quota does not evict what is pinned before its pins end.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, quotas(5))
	openNamespace(t, s, "m")
	time.Sleep(20 * time.Millisecond) // quotas are looked after at once
	mustRead(t, s, pinned)
	if have, st := recordsOf(t, s, tenantOf("a")), s.Stats(); have != 20 || st.Pinned != 21 || st.Quota.Evicted != 0 {
		t.Errorf("%d records, %d pinned, %+v", have, st.Pinned, st.Quota)
	}
	for _, pin := range s.Pins().List() {
		if pin.ID != first[0].ID {
			if err := s.Pins().Remove(t.Context(), pin.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	wait.For(t, "all that may go has gone", func() bool { return recordsOf(t, s, tenantOf("a")) == 12 })
	mustRead(t, s, pinned)

	// A removal of the tenant takes them, too.
	r, err := s.PurgeTenant(t.Context(), tenantOf("a"), time.Minute)
	if err != nil || r.Removed != 12 || r.Left != 0 || r.Incomplete {
		t.Errorf("%+v, %v", r, err)
	}
	if st := s.Stats(); st.Pinned != 0 || st.PinnedBytes != 0 || s.Tenant(tenantOf("a")).Pinned != 0 || recordsOf(t, s, tenantOf("b")) != 4 {
		t.Errorf("%d are pinned, %+v", st.Pinned, s.Tenants())
	}
	mustBalance(t, s)
}
