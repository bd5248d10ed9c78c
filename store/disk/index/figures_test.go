package index

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// The sizes of ADR 3. The table grows by half at a time, so the numbers of records are of one such step.
func TestMemoryOfARecord(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); n != entryBytes {
		t.Errorf("an entry has %d bytes, not %d", n, entryBytes)
	}
	least, most, choice := 1e9, 0.0, 0.0
	for n := 100_000; n < 150_000; n += 5000 {
		table, _ := fill(t, n, 1000)
		per := float64(table.MemoryBytes()-New().MemoryBytes()) / float64(n)
		least, most = min(least, per), max(most, per)
		choice = max(choice, float64(table.cold.memoryBytes())/float64(n))
	}
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("One entry of %d bytes a slot", entryBytes))
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("%.0f to %.0f bytes a record", least, most))
	docs.Says(t, "adr/0003-store.md", fmt.Sprintf("It costs %.1f bytes a slot", choice))
}
