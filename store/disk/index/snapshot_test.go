package index

import (
	"slices"
	"testing"
)

// TestImageIsTheTable takes the image of a table at every stage, in the middle of a growth too,
// and fills another one from it.
func TestImageIsTheTable(t *testing.T) {
	m := newModel(t)
	for _, records := range []int{0, 1, 5000, 5450, 40_000, 44_000} {
		for len(m.ids) < records {
			m.insert(40)
		}
		m.giveUp()
		im := m.table.Image()
		other := New()
		copied := im
		if err := other.Prepare(&copied); err != nil {
			t.Fatalf("%d records: %v", records, err)
		}
		from, to := slices.Concat(im.Entries, im.Hash), slices.Concat(copied.Entries, copied.Hash)
		for i := range from {
			copy(to[i], from[i])
		}
		found := 0
		for i := range copied.Hash {
			n, err := other.CheckHash(i)
			if err != nil {
				t.Fatal(err)
			}
			found += n
		}
		other.Finish(0, im.Limit)
		if found != im.Count || other.Limit() != m.table.Limit() {
			t.Errorf("%d records and slots up to %d, want %d and %d", found, other.Limit(), im.Count, m.table.Limit())
		}
		was := m.table
		m.table = other
		for _, r := range m.ranges {
			other.Track(1, r, 0)
			if free := other.Survey(r, nil); len(free) == int(r.Slots) && len(m.ranges) == 1 && len(m.ids) > 0 {
				t.Error("no slot holds a record")
			}
		}
		m.check()
		for _, r := range evictAll(other, 50) {
			m.gone(r)
		}
		m.insert(30)
		m.check()
		was.Close()
	}
	t.Cleanup(m.table.Close)
}

func TestImageThatCannotBeIsRefused(t *testing.T) {
	for _, im := range []Image{
		{Count: 1}, {Count: 13, Buckets: 1}, {Buckets: MaxBuckets + 1},
	} {
		table := New()
		if err := table.Prepare(&im); err == nil {
			t.Errorf("%+v: no error", im)
		}
		table.Close()
	}
}
