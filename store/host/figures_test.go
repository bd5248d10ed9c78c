package host

import (
	"fmt"
	"testing"
	"unsafe"

	"github.com/kvconn/kvconn/internal/testkit/docs"
)

// The sizes of ADR 5, from an arena whose tables are full: its memory is addresses alone.
func TestMemoryOfTheBooks(t *testing.T) {
	const payload = 640 << 10
	const perUnit = unitBytes / payload
	const units = 12 * (slabSlots / perUnit)
	a, err := New(Options{Bytes: units * unitBytes, PopulateAheadBytes: 1, newMemory: addresses})
	if err != nil {
		t.Fatal(err)
	}
	c := newAccount(t, a, AccountOptions{})
	var s Slot
	for n := range units * perUnit {
		if !c.ReserveSave(&s, payload) || !s.Publish(record(n)) {
			t.Fatal("no memory")
		}
		s.Release()
	}
	if st := a.Stats(); st.Records != units*perUnit || st.Evictions > 0 {
		t.Fatalf("%+v", st)
	}
	slots := 0
	books := uintptr(len(a.units)) * unsafe.Sizeof(a.units[0])
	for i := range a.slabs {
		b := &a.slabs[i]
		slots += len(b.slots)
		books += uintptr(len(b.slots))*unsafe.Sizeof(slot{}) + uintptr(len(b.spans))*unsafe.Sizeof(span{}) + uintptr(cap(b.vacant))*unsafe.Sizeof(b.vacant[0])
	}
	index := uintptr(len(a.index.chunks)<<chunkBits) * unsafe.Sizeof(slotID(0))
	const terabyte = 1 << 40
	perSlot := float64(books+index) / float64(slots)
	docs.Says(t, "adr/0005-leader-and-workers.md", fmt.Sprintf("%d bytes a slot and %.0f of index", unsafe.Sizeof(slot{}), float64(index)/float64(slots)))
	docs.Says(t, "adr/0005-leader-and-workers.md", fmt.Sprintf("at 1 TB, where the books are %.0f MB", perSlot*terabyte/unitBytes*perUnit/1e6))
	c.Close()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
}
