package purge

import (
	"encoding/binary"
	"testing"

	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

const tenantPayload = 8192

// tenantTable is a table of n records; slot i has one of tenant i modulo many, and no parent.
func tenantTable(tb testing.TB, n, many int) *index.Table {
	tb.Helper()
	table := index.New()
	tb.Cleanup(table.Close)
	if _, err := table.AddSlots(uint32(n)); err != nil {
		tb.Fatal(err)
	}
	batch := make([]index.Insertion, 0, 256)
	for i := range n {
		in := index.Insertion{Ref: index.Ref(i), Seq: uint64(i + 1), Bytes: tenantPayload, Tenant: numbered(i % many)}
		binary.LittleEndian.PutUint64(in.ID.Key[:], uint64(i+1)*0x9E3779B97F4A7C15)
		if batch = append(batch, in); len(batch) == cap(batch) || i == n-1 {
			table.Insert(batch)
			batch = batch[:0]
		}
	}
	return table
}

// numbered is one of many tenants; 0 is none.
func numbered(i int) (id tenants.ID) {
	binary.LittleEndian.PutUint32(id[:], uint32(i))
	return id
}

func TestATenantIsEmptiedInRuns(t *testing.T) {
	const n, many = 20_000, 4
	table := tenantTable(t, n, many)
	table.PinSlot(1 + many)
	var out []index.Removed
	left, runs := 0, 0
	for from := index.Ref(0); from != index.NoRef; runs++ {
		before, more := len(out), 0
		out, more, from = emptyTenant(table, numbered(1), n/2, from, out)
		if left += more; len(out)-before > removeRun {
			t.Fatalf("%d at one time", len(out)-before)
		}
	}
	if want := n / many / 2; len(out) != want-1 || left != 1 {
		t.Errorf("%d are gone and %d left in %d runs, want %d and 1", len(out), left, runs, want-1)
	}
	if has, _ := table.Tenants().Tenant(numbered(1)); has.Records != n/many/2+1 {
		t.Errorf("%+v", has)
	}
	for from := index.Ref(0); from != index.NoRef; {
		out, _, from = emptyTenant(table, numbered(many+1), n, from, out[:0])
		if len(out) > 0 {
			t.Fatal("records of nobody are gone")
		}
	}
}
