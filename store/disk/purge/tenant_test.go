package purge

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/indextest"
	"github.com/kvconn/kvconn/store/disk/index"
)

func TestATenantIsEmptiedInRuns(t *testing.T) {
	const n, many = 20_000, 4
	table := indextest.Tenants(t, n, many)
	table.PinSlot(1 + many)
	var out []index.Removed
	left, runs := 0, 0
	for from := index.Ref(0); from != index.NoRef; runs++ {
		before, more := len(out), 0
		out, more, from = emptyTenant(table, indextest.Tenant(1), n/2, from, out)
		if left += more; len(out)-before > removeRun {
			t.Fatalf("%d at one time", len(out)-before)
		}
	}
	if want := n / many / 2; len(out) != want-1 || left != 1 {
		t.Errorf("%d are gone and %d left in %d runs, want %d and 1", len(out), left, runs, want-1)
	}
	if has, _ := table.Tenants().Tenant(indextest.Tenant(1)); has.Records != n/many/2+1 {
		t.Errorf("%+v", has)
	}
	for from := index.Ref(0); from != index.NoRef; {
		out, _, from = emptyTenant(table, indextest.Tenant(many+1), n, from, out[:0])
		if len(out) > 0 {
			t.Fatal("records of nobody are gone")
		}
	}
}
