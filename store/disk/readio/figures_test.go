package readio

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// What ADR 3 says of how much is in the disk at one time.
func TestFiguresOfTheGate(t *testing.T) {
	if defaultWriters != 8 || defaultWriters/fewWrites != 2 || fewWrites != 4 || mostWriters != 64 {
		t.Errorf("%d writes, a %dth of them beside reads, %d at most", defaultWriters, fewWrites, mostWriters)
	}
	docs.Says(t, "adr/0003-store.md", "Eight writes are in the disk at any time, two while anything is read")
	docs.Says(t, "adr/0003-store.md", "more writes go on within that (a quarter of it beside reads), 64 at most")
	docs.Says(t, "adr/0003-store.md", "only a quarter of the writes are")
}
