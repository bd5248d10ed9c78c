package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/indextest"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/index/victim"
)

// coldestOf selects records of a tenant.
func coldestOf(table *index.Table, id tenants.ID, want int) []index.Victim {
	_, n := table.Tenants().Tenant(id)
	of := make([]*victim.Selection, int(n)+1)
	of[n] = victim.NewSelection(want)
	coldest(table, of)
	return of[n].Sorted()
}

func TestATenantsColdestRecordsGoFirst(t *testing.T) {
	const n, many, slot = 20_000, 4, indextest.PayloadBytes + 4096
	table := indextest.Tenants(t, n, many)
	id := indextest.Tenant(1)
	list := coldestOf(table, id, 100)
	if len(list) != 100 {
		t.Fatalf("%d victims", len(list))
	}
	used, pinned := list[0], list[1]
	key := func(v index.Victim) connector.Key {
		k, _, _ := table.PinSlot(v.Ref)
		table.Unpin(v.Ref)
		return k.Key
	}
	table.Touch(0, 0, []connector.Key{key(used)})
	table.PinSlot(pinned.Ref)
	e := &Eviction{ID: id, Victims: list, Bytes: 10*slot - 1}
	out := e.Take(table, nil)
	rest, freed := e.Victims, e.Freed
	if len(out) != 10 || freed != 10*slot || len(rest) != 88 {
		t.Fatalf("%d are gone, %d bytes, %d victims are left", len(out), freed, len(rest))
	}
	for i, r := range out {
		if want := index.Ref(1 + many*(i+2)); r.Ref != want {
			t.Errorf("%d: slot %d went, want %d", i, r.Ref, want)
		}
	}
	if out := (&Eviction{ID: indextest.Tenant(2), Victims: rest, Bytes: slot}).Take(table, nil); len(out) != 0 {
		t.Error("a record of another tenant went")
	}
	if out := (&Eviction{ID: id, Victims: list, Bytes: slot}).Take(table, nil); len(out) != 1 || out[0].Ref != rest[0].Ref {
		t.Errorf("%+v went, want slot %d", out, rest[0].Ref)
	}
	if has, _ := table.Tenants().Tenant(id); has.Records != n/many-11 || has.Bytes != has.Records*slot {
		t.Errorf("%+v", has)
	}
}

// BenchmarkTenants is what tenants cost: memory, insertions, and the selection of a sixteenth of one's records, of a
// thousandth and of half of all. 5 million records, a million with -short.
func BenchmarkTenants(b *testing.B) {
	n := 5_000_000
	if testing.Short() {
		n = 1_000_000
	}
	for _, many := range []int{1, 2, 1000} {
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			for b.Loop() {
				began := time.Now()
				table := indextest.Tenants(b, n, many)
				b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(n), "insert-ns/record")
				b.ReportMetric(float64(table.MemoryBytes())/float64(n), "bytes/record")
				began = time.Now()
				coldestOf(table, indextest.Tenant(many-1), max(256, n/many/16))
				b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "select-ms")
				table.Close()
			}
		})
	}
}
