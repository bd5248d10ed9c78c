package disk

import (
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/segment"
)

// The slots of a segment that keeps its place, since a record of it is held, waited for a barrier
// that nothing asked for: where no other slot was free, saves failed from then on.
func TestSlotsThatComeBackAreFreedThoughNothingElseHappens(t *testing.T) {
	_, s, _, _ := twoSizes(t, time.Minute)
	settle(t, s)
	unpin := retireAndPin(t, s)
	defer unpin()
	wait.For(t, "the segment keeps its place", func() bool { return s.Stats().RetiringSegments == 0 })
	wait.For(t, "its slots are free", func() bool { return s.Stats().PendingSlots == 0 })
	checkAccounting(t, s)
}

const (
	largeSegment = 17 << 20
	smallPayload = 4 << 10
	groupSlots   = 64
)

// largeFull opens a store whose segments are so large that the index looks at every other group of
// their slots alone when it is to say which is the coldest, on a disk that change leaves room for a few
// of them. It fills the store, and holds a record where nobody looks in each segment but the last.
func largeFull(t *testing.T, change func(d *memDisk, o *Options)) (s *Store, held []*segment.Segment) {
	t.Helper()
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	o.MaxBytes, o.SegmentBytes, o.SlotWait = 32*largeSegment, largeSegment, 3*time.Second
	change(d, &o)
	s = watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	for chain := 0; s.Stats().Evicted == 0; chain++ {
		writeUntilDone(t, s, ofSize(ns, chain, 100, smallPayload))
	}
	settle(t, s)
	held = s.space.AllSegments()
	held = held[:len(held)-1]
	for _, g := range held {
		hold(t, s, g)
	}
	return s, held
}

// hold pins a record of a segment, in a group that is not looked at, until the test ends.
func hold(t *testing.T, s *Store, g *segment.Segment) {
	t.Helper()
	for slot := range index.Ref(g.Slots) {
		if slot/groupSlots%2 == 0 {
			continue
		}
		if _, _, ok := s.table.PinSlot(g.Base + slot); ok {
			t.Cleanup(func() { s.table.Unpin(g.Base + slot) })
			return
		}
	}
	t.Fatal("no record to hold")
}

// saveAnotherSize saves more records of another size than there is room for without giving up a segment.
func saveAnotherSize(t *testing.T, s *Store, held []*segment.Segment) {
	t.Helper()
	mustWrite(t, s, ofSize(openNamespace(t, s, "b"), 1, 200, otherPayload))
	for _, g := range held {
		if s.space.At(g.Base) != g {
			t.Errorf("segment %d is gone with a record that is held", g.ID)
		}
	}
	settle(t, s)
	checkAccounting(t, s)
}

// A record that was held where nobody looked kept other sizes from being saved, as long as it was
// held: its segment was chosen again each time it had got its slots back, since it was nearly empty.
func TestHeldRecordOfALargeSegmentHoldsNobodyUp(t *testing.T) {
	s, held := largeFull(t, func(d *memDisk, o *Options) {
		d.total, o.MinFreeBytes = 5*largeSegment, largeSegment
	})
	saveAnotherSize(t, s, held)
}

// On a full disk one segment is given up for another size, and no second one before it is known
// whether that helped. One that kept its place, since a record was held, counted as given up: the
// other size was not saved again before others freed space.
func TestHeldRecordOnAFullDiskHoldsNobodyUp(t *testing.T) {
	s, held := largeFull(t, func(d *memDisk, o *Options) {
		d.room, o.MinFreeBytes = 7*largeSegment/2, -1
	})
	saveAnotherSize(t, s, held)
}
