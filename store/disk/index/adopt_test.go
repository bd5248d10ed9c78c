package index

import (
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// TestAdoptionLeavesPopulationToItsCaller: the caller holds a lock that writers wait for, and the
// system may take milliseconds to give memory.
func TestAdoptionLeavesPopulationToItsCaller(t *testing.T) {
	table := New()
	defer table.Close()
	base, err := table.AddSlots(10)
	if err != nil {
		t.Fatal(err)
	}
	batch := []Adopted{{Insertion: Insertion{ID: ID{Key: connector.Key{1}}, Ref: base, Seq: 1, Bytes: 1}}}
	idle := func(ID) bool { return false }
	table.Adopt(Range{Base: base, Slots: 10}, batch, nil, idle, nil)
	if table.populated[0] != 0 || !batch[0].Added {
		t.Errorf("populated %b, added %v", table.populated[0], batch[0].Added)
	}
	table.PrepareAdopt(batch)
	if table.populated[0] != 1 {
		t.Errorf("populated %b", table.populated[0])
	}
}
