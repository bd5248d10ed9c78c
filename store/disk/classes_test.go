package disk

import (
	"fmt"
	"testing"
)

// Slots of a new size must not cost the records of other sizes while the cap has room
// for both.
func TestNewSlotSizeEvictsNothingWhileThereIsRoom(t *testing.T) {
	s := openTest(t, testOptions(t.TempDir()))
	for size := range 6 {
		ns := openNamespace(t, s, fmt.Sprint("m", size))
		records := chainOf(ns, size, 8)
		for i := range records {
			records[i].Bytes = 4096 * (size + 1)
		}
		for i, err := range writeAll(t, s, records) {
			if err != nil {
				t.Fatalf("size %d, record %d: %v", size, i, err)
			}
		}
	}
	if st := s.Stats(); st.Evicted != 0 || st.Records != 48 {
		t.Errorf("%d records evicted, %d left; want 48 records and no eviction in a store that is %d of %d bytes full",
			st.Evicted, st.Records, st.PhysicalBytes, st.MaxBytes)
	}
}
