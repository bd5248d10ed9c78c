package disk

import "testing"

// TestPartsOfTheJournalHoldEachSegmentOnce: segments that are gone have entries too, so that the
// parts reach from the first number to the last.
func TestPartsOfTheJournalHoldEachSegmentOnce(t *testing.T) {
	s := openTest(t, memOptions(newMemDisk(), newJournalFS()))
	if _, bounds := s.partJournal(4); len(bounds) != 2 {
		t.Errorf("an empty store: %v", bounds)
	}
	ns := openNamespace(t, s, "a")
	for chain := range 100 {
		mustWrite(t, s, chainOf(ns, chain, 20))
	}
	total, largest := 0, 0
	segments := s.space.AllSegments()
	for _, g := range segments {
		total += int(g.Slots)
		largest = max(largest, int(g.Slots))
	}
	if len(segments) < 4 {
		t.Fatalf("%d segments: too few to be parted", len(segments))
	}
	for parts := 1; parts <= 6; parts++ {
		loaders, bounds := s.partJournal(parts)
		if len(loaders) != min(parts, len(segments)) || bounds[0] != 0 || bounds[len(bounds)-1] != 1<<32-1 || len(bounds) != len(loaders)+1 {
			t.Fatalf("%d parts: %d loaders, bounds %v", parts, len(loaders), bounds)
		}
		seen := 0
		for i := range loaders {
			slots := 0
			for _, g := range segments {
				if g.ID >= bounds[i] && g.ID < bounds[i+1] {
					slots += int(g.Slots)
					seen++
				}
			}
			if slots == 0 || slots > total/parts+largest {
				t.Errorf("part %d of %d has %d of %d slots", i, parts, slots, total)
			}
		}
		if seen != len(segments) {
			t.Errorf("%d parts hold %d of %d segments", parts, seen, len(segments))
		}
	}
}
