package disk

import "testing"

// TestUnusedSizeGivesItsSpaceToTheOneInUse fills a store with one payload size and then
// uses another.
func TestUnusedSizeGivesItsSpaceToTheOneInUse(t *testing.T) {
	t.Parallel()
	o := testOptions(t.TempDir())
	o.MaxBytes = 12 << 20
	s := openTest(t, o)
	old := openNamespace(t, s, "old")
	for chain := range 20 {
		mustWrite(t, s, chainOf(old, chain, 30))
	}
	fresh := openNamespace(t, s, "new")
	written := 0
	for chain := 100; chain < 140; chain++ {
		records := chainOf(fresh, chain, 10)
		for i := range records {
			records[i].Bytes = 40 << 10
		}
		mustWrite(t, s, records)
		written += len(records)
		if n := lookup(s, fresh, records); n != len(records) {
			t.Fatalf("chain %d: found %d", chain, n)
		}
	}
	ofOld, ofNew := 0, 0
	for chain := range 20 {
		ofOld += lookup(s, old, chainOf(old, chain, 30))
	}
	for chain := 100; chain < 140; chain++ {
		ofNew += lookup(s, fresh, chainOf(fresh, chain, 10))
	}
	if ofNew < 100 || ofOld > ofNew {
		t.Errorf("%d records of the size in use, %d of the other, %+v", ofNew, ofOld, s.Stats())
	}
	physical, err := s.opts.fs.PhysicalBytes(o.Dir)
	if err != nil || physical > o.MaxBytes {
		t.Errorf("%d bytes on disk, %v", physical, err)
	}
}
