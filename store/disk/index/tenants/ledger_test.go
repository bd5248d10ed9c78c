package tenants

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
)

func tenant(salt string) ID { return Of(connector.Scope{Salt: salt}.Digest()) }

func newLedger(t *testing.T) *Ledger {
	t.Helper()
	l := New()
	t.Cleanup(l.Close)
	if err := l.Grow(); err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *Ledger) want(t *testing.T, id ID, records, bytes int64) {
	t.Helper()
	if got, _ := l.Tenant(id); got.Records != records || got.Bytes != bytes {
		t.Errorf("tenant %v has %d records of %d bytes, want %d of %d", id, got.Records, got.Bytes, records, bytes)
	}
}

func TestRecordsAreCountedByTenant(t *testing.T) {
	l := newLedger(t)
	a, b := tenant("a"), tenant("b")
	l.Add(0, a, 10)
	l.Add(1, b, 20)
	l.Add(2, a, 30)
	l.Add(3, ID{}, 40)
	l.Add(4, Unknown, 50)
	l.want(t, a, 2, 40)
	l.want(t, b, 1, 20)
	l.want(t, ID{}, 1, 40)
	l.want(t, Unknown, 1, 50)
	now := time.Now()
	if id := l.Hit(l.At(2), 7, now); id != a {
		t.Errorf("slot 2 is of %v", id)
	}
	if got, _ := l.Tenant(a); got.Hits != 7 || !got.LastHit.Equal(now) {
		t.Errorf("%+v", got)
	}
	if n := len(l.All()); n != 4 {
		t.Errorf("%d tenants", n)
	}
	l.Remove(1, 20)
	l.Remove(0, 10)
	l.want(t, a, 1, 30)
	l.want(t, b, 0, 0)
	l.Add(1, tenant("c"), 60) // gets b's number
	l.want(t, b, 0, 0)
	l.want(t, tenant("c"), 1, 60)
	if len(l.tenants) != int(firstFree)+2 {
		t.Errorf("%d numbers for two tenants", len(l.tenants))
	}
}

// A client can make as many tenants as it likes.
func TestTenantsAreBounded(t *testing.T) {
	l := newLedger(t)
	l.most = int(firstFree) + 2
	for i, salt := range []string{"a", "b", "c", "d"} {
		l.Add(uint32(i), tenant(salt), 10)
	}
	l.want(t, Rest, 2, 20)
	if got, n := l.Tenant(tenant("e")); got.ID != Rest || n != rest {
		t.Errorf("a tenant that would get no number counts as %v", got.ID)
	}
	l.Remove(0, 10)
	l.Remove(2, 10)
	l.want(t, Rest, 1, 10)
	l.Add(0, tenant("e"), 10)
	l.want(t, tenant("e"), 1, 10)
}

func TestNoTenantCostsNoMemory(t *testing.T) {
	l := newLedger(t)
	for ref := range uint32(1000) {
		l.Add(ref, ID{}, 10)
	}
	if n := l.MemoryBytes(ChunkSlots); n != 0 {
		t.Errorf("%d bytes", n)
	}
	l.Add(1000, tenant("a"), 10)
	if n := l.MemoryBytes(ChunkSlots); n < 2*ChunkSlots || n > 3*ChunkSlots {
		t.Errorf("%d bytes", n)
	}
}

func TestASnapshotHasTheTenants(t *testing.T) {
	l := newLedger(t)
	for i, salt := range []string{"a", "b", "a", "gone"} {
		l.Add(uint32(i), tenant(salt), 10)
	}
	l.Remove(3, 10)
	again := newLedger(t)
	if err := again.Restore(l.Save()); err != nil {
		t.Fatal(err)
	}
	for i, b := range again.Blocks(100) {
		copy(b, l.Blocks(100)[i])
		if err := again.Check(b); err != nil {
			t.Error(err)
		}
	}
	again.want(t, tenant("a"), 2, 20)
	again.want(t, tenant("b"), 1, 10)
	again.Remove(1, 10)
	again.want(t, tenant("b"), 0, 0)
	again.Add(5, tenant("new"), 10)
	again.Add(6, tenant("newer"), 10)
	if len(again.tenants) != len(l.tenants) {
		t.Errorf("%d numbers, %d before", len(again.tenants), len(l.tenants))
	}
	// Slots that are empty now keep the numbers that they had.
	stale := newLedger(t)
	stale.Add(0, tenant("a"), 10)
	stale.Add(1, ID{}, 10)
	stale.Remove(0, 10)
	then := newLedger(t)
	if err := then.Restore(stale.Save()); err != nil {
		t.Fatal(err)
	}
	copy(then.Blocks(2)[0], stale.Blocks(2)[0])
	then.Add(0, ID{}, 10)
	then.Add(2, tenant("b"), 10)
	then.Remove(0, 10)
	then.want(t, ID{}, 1, 10)
	then.want(t, tenant("b"), 1, 10)
	// A store without tenants has no numbers.
	plain, next := newLedger(t), newLedger(t)
	plain.Add(0, ID{}, 10)
	if err := next.Restore(plain.Save()); err != nil || plain.Blocks(1) != nil || next.Blocks(1) != nil {
		t.Errorf("%v", err)
	}
	next.want(t, ID{}, 1, 10)
	wrong := bytes.Repeat([]byte{0xff}, 8)
	if again.Check(wrong) == nil {
		t.Error("a number that nobody has passes")
	}
	for _, saved := range [][]Saved{nil, make([]Saved, 2), make([]Saved, firstFree), make([]Saved, mostNumbers+1)} {
		if New().Restore(saved) == nil {
			t.Errorf("%d tenants pass", len(saved))
		}
	}
}

// A number that was kept for a tenant is given to another once that tenant is not to keep it, and has no records.
func TestAKeptNumberCanBeGivenBack(t *testing.T) {
	l := newLedger(t)
	a, b := tenant("a"), tenant("b")
	l.Keep(a)
	l.Keep(b)
	l.Add(0, b, 10)
	l.Unkeep(a)
	l.Unkeep(b)
	l.Unkeep(tenant("nobody"))
	l.Unkeep(ID{})
	l.Unkeep(ID{})
	l.want(t, b, 1, 10)
	l.Add(1, tenant("c"), 20) // gets a's number
	l.want(t, tenant("c"), 1, 20)
	l.Remove(0, 10)
	l.Add(2, tenant("d"), 30) // gets b's
	l.want(t, tenant("d"), 1, 30)
	if len(l.tenants) != int(firstFree)+2 {
		t.Errorf("%d numbers for two tenants", len(l.tenants))
	}
}
