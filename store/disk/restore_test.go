package disk

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/store"
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
	// The evictor makes headroom for the class meanwhile.
	for before := uint64(0); before != s.Stats().Evicted; time.Sleep(50 * time.Millisecond) {
		before = s.Stats().Evicted
		settle(t, s)
	}
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

// A record that was held where nobody looked kept other sizes from being saved, as long as it was
// held, and cost all others of its segment: that was chosen, kept its place, and was chosen again since
// it was nearly empty.
func TestHeldRecordOfALargeSegmentHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	s, held := largeFull(t, func(d *memDisk, o *Options) {
		d.total, o.MinFreeBytes = 5*largeSegment, largeSegment
	})
	records := 0
	for _, g := range held {
		records += len(s.table.Describe(g.Range(), nil))
	}
	mustWrite(t, s, ofSize(openNamespace(t, s, "b"), 1, 200, otherPayload)) // more than was left
	for _, g := range held {
		records -= len(s.table.Describe(g.Range(), nil))
	}
	if records > 0 {
		t.Errorf("%d records of segments that keep their place are gone", records)
	}
	settle(t, s)
	checkAccounting(t, s)
}

// On a full disk one segment is given up for another size, and no second one before it is known
// whether that helped. One that kept its place, since a record was held, counted as given up: the
// other size was not saved again before others freed space.
func TestSegmentThatKeptItsPlaceWasNotGivenUp(t *testing.T) {
	d := newMemDisk()
	o := memOptions(d, newJournalFS())
	d.room = 6 << 20
	o.MaxBytes, o.MinFreeBytes, o.SlotWait = 64<<20, -1, 5*time.Second
	s := watchCap(t, o).of(openTest(t, o))
	ns := openNamespace(t, s, "a")
	chain := 0
	for ; s.Stats().Evicted == 0; chain++ {
		writeUntilDone(t, s, chainOf(ns, chain, 20))
	}
	settle(t, s)
	// The evictor fills the headroom of the first size through the committer, and chooses nothing
	// for the other while it waits for that.
	wait.For(t, "enough slots are free", func() bool {
		slots := int64(0)
		for _, g := range s.space.InUse() {
			slots += int64(g.Slots)
		}
		return s.Stats().FreeSlots >= slots/16
	})
	blocked, held := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	defer release()                 // a test that fails must not keep the store from being closed
	r := chainOf(ns, chain-1, 1)[0] // it is there: no slot is needed
	op := &store.WriteOp{Record: store.Record{ID: r.ID}, Payload: r.payload()}
	if _, err := s.Write([]*store.WriteOp{op}, func(*store.WriteOp) { close(blocked); <-held }); err != nil {
		t.Fatal(err)
	}
	<-blocked // the committer empties no segment
	b := openNamespace(t, s, "b")
	saved := make(chan error, 1)
	go func() { saved <- errors.Join(writeAll(t, s, ofSize(b, 1, 20, otherPayload))...) }()
	wait.For(t, "a segment is chosen", func() bool { return s.Stats().RetiringSegments == 1 })
	inUse := s.space.InUse()
	for _, g := range s.space.AllSegments() {
		if slices.Contains(inUse, g) {
			continue
		}
		pinned := firstRecord(t, s, g)
		s.table.PinSlot(pinned)
		defer s.table.Unpin(pinned)
	}
	release()
	if err := <-saved; err != nil {
		t.Error(err)
	}
	settle(t, s)
	checkAccounting(t, s)
}
