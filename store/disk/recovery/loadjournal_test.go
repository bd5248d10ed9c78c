package recovery

import (
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store/disk/format"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// TestPartsOfTheJournalHoldEachSegmentOnce: segments that are gone have entries too, so that the
// parts reach from the first number to the last.
func TestPartsOfTheJournalHoldEachSegmentOnce(t *testing.T) {
	if bounds := partJournal(nil, 4); len(bounds) != 2 {
		t.Errorf("an empty store: %v", bounds)
	}
	g := seed.Random(t, 0)
	var segments []*segment.Segment
	total, largest := 0, 0
	for id := uint32(1); len(segments) < 12; id += 1 + g.Uint32N(3) {
		slots := 1 + g.Uint32N(100)
		segments = append(segments, &segment.Segment{Segment: format.Segment{ID: id, Slots: slots}})
		total += int(slots)
		largest = max(largest, int(slots))
	}
	for parts := 1; parts <= 6; parts++ {
		bounds := partJournal(segments, parts)
		if bounds[0] != 0 || bounds[len(bounds)-1] != 1<<32-1 {
			t.Fatalf("%d parts: bounds %v", parts, bounds)
		}
		seen := 0
		for i := range len(bounds) - 1 {
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
