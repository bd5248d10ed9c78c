package catalog

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

func TestALookUpFindsWhatListsSay(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 3000)
	wantPrefix(t, c, chain, 0)
	apply(t, c, chainOf(1, chain[:2900], 16), 2900)
	wantPrefix(t, c, chain, 2900)
	wantPrefix(t, c, chain[100:], 2800)
	apply(t, c, chainOf(1, chain[:2900], 16), 0) // again
	if n := c.Prefix(testSpace, []connector.Shard{0, 1}, chain, nil); n != 0 {
		t.Errorf("%d blocks of a shard that is not there", n)
	}
	if n := c.Prefix(connector.NamespaceDigest{2}, shardZero, chain, nil); n != 0 {
		t.Errorf("%d blocks of another namespace", n)
	}
	other := chainOf(1000, chain[:1000], 7)
	for i := range other {
		other[i].Shard = 1
	}
	apply(t, c, other, 1000)
	if n := c.Prefix(testSpace, []connector.Shard{0, 1}, chain, nil); n != 1000 {
		t.Errorf("%d blocks with both shards, want 1000", n)
	}
	at := make([]bool, len(chain))
	c.Present(testSpace, 1, chain, at)
	if n := slices.Index(at, false); n != 1000 || slices.Contains(at[n:], true) {
		t.Errorf("%d leading records of shard 1 are present", n)
	}
	if got := c.Namespaces(); !slices.Equal(got, []connector.NamespaceDigest{testSpace}) {
		t.Errorf("namespaces %v", got)
	}
}

func TestAPlaceIsThatOfTheSlot(t *testing.T) {
	c := newCatalog(t, Options{Readable: func(uint16, uint8) bool { return true }})
	chain := randomKeys(seed.Random(t, 0), 20)
	o := object(5, chain, 3, 12)
	o.Needs, o.Codec = 3, 1
	for i := range o.Records { // compressed: slots of various sizes
		o.Records[i].Start = uint16(5*i + i%3)
	}
	apply(t, c, []format.Object{o}, 12)
	for i := range o.Records {
		p, ok := c.Locate(recordID(chain[3+i]), testPayload)
		from, bytes := o.Slot(i)
		want := Place{Object: o.ID, Ordinal: uint16(i), From: from, Bytes: bytes, Needs: 3, Codec: 1}
		if !ok || p != want {
			t.Errorf("record %d: %+v, %v; want %+v", i, p, ok, want)
		}
	}
	if p, ok := c.Locate(recordID(chain[0]), testPayload); ok {
		t.Errorf("a record that is not there: %+v", p)
	}
	if p, ok := c.Locate(recordID(chain[3]), testPayload*2); ok {
		t.Errorf("a record of another size: %+v", p)
	}
}

func TestRemovedObjectsAreReadAndNotOffered(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 32)
	objects := chainOf(1, chain, 16)
	apply(t, c, objects, 32)
	second := format.List{Removed: []format.Removal{removal(&objects[1], 100)}}
	for i, want := range []int{16, 0} {
		if added, removed := c.Apply(&second); added != 0 || removed != want {
			t.Errorf("application %d: %d came, %d went", i, added, removed)
		}
	}
	wantPrefix(t, c, chain, 16)
	if p, ok := c.Locate(recordID(chain[20]), testPayload); !ok || p.Object != objects[1].ID {
		t.Errorf("a record of an object that is leaving: %+v, %v", p, ok)
	}
	if got := c.Removed(100); got != nil {
		t.Errorf("removed before 100: %v", got)
	}
	if got := c.Removed(101); !slices.Equal(got, []format.ObjectID{objects[1].ID}) {
		t.Errorf("removed before 101: %v", got)
	}
	if s := c.Stats(); s.Objects != 1 || s.LeavingObjects != 1 || s.LeavingBytes != int64(objects[1].Bytes) || s.Records != 16 {
		t.Errorf("%+v", s)
	}
	c.Apply(&format.List{Deleted: []format.ObjectID{objects[1].ID}})
	if p, ok := c.Locate(recordID(chain[20]), testPayload); ok {
		t.Errorf("a record whose bytes are gone: %+v", p)
	}
	apply(t, c, objects, 0) // an old list
	wantPrefix(t, c, chain, 16)
	if got := c.Removed(101); got != nil {
		t.Errorf("removed, once deleted: %v", got)
	}
}

func TestARemovalMayComeBeforeItsObject(t *testing.T) {
	k := &clock{now: someTime}
	c := newCatalog(t, Options{Now: k.read})
	chain := randomKeys(seed.Random(t, 0), 48)
	objects := chainOf(1, chain, 16)
	c.Apply(&format.List{Removed: []format.Removal{removal(&objects[0], someTime)}})
	c.Apply(&format.List{Deleted: []format.ObjectID{objects[1].ID}})
	if info, ok := c.Object(objects[0].ID); !ok || info.State != StateLeaving || info.Bytes != 0 {
		t.Errorf("%+v, %v", info, ok)
	}
	apply(t, c, objects, 16)
	wantPrefix(t, c, chain, 0)
	wantPrefix(t, c, chain[32:], 16)
	if s := c.Stats(); s.Objects != 1 || s.LeavingObjects != 1 || s.LeavingBytes != int64(objects[0].Bytes) {
		t.Errorf("%+v", s)
	}
	k.now += goneSeconds + 1 // no list has it any more
	before := c.hash.count
	c.Apply(new(format.List))
	if c.hash.count != before-1 {
		t.Errorf("%d entries after %d: a deleted object is still remembered", c.hash.count, before)
	}
}

func TestTheOtherOfTwoIsServedWhenOneGoes(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 16)
	var objects []format.Object
	for i := range maxTwins {
		objects = append(objects, object(uint64(i), chain, 0, 16))
	}
	apply(t, c, objects, 16*maxTwins)
	u, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	n := 0
	if err := u.Snapshot(t.Context(), func(store.Resident) error { n++; return nil }); err != nil || n != 16 {
		t.Errorf("%d records in the snapshot, %v", n, err)
	}
	for range objects {
		wantPrefix(t, c, chain, 16)
		p, ok := c.Locate(recordID(chain[3]), testPayload)
		if !ok || p.Ordinal != 3 {
			t.Fatalf("%+v, %v", p, ok)
		}
		if !c.Lost(p.Object, format.CauseLost) || c.Lost(p.Object, format.CauseLost) {
			t.Error("an object is lost once")
		}
	}
	wantPrefix(t, c, chain, 0)
	events, err := u.Next(t.Context())
	if err != nil || len(events) != 16 || events[0].Kind != store.EventRemoved {
		t.Errorf("%d events, %v", len(events), err)
	}
	if s := c.Stats(); s.LostObjects != maxTwins || s.Objects != maxTwins || s.Records != 0 {
		t.Errorf("%+v", s)
	}
}

func TestManyCopiesOfOneChainCostNoLookUp(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 16)
	const copies = 200
	for i := range copies {
		c.Apply(&format.List{Objects: []format.Object{object(uint64(i), chain, 0, 16)}})
	}
	wantPrefix(t, c, chain, 16)
	if most := copies + 16*maxTwins; c.hash.count != most {
		t.Errorf("%d references of %d objects, want %d", c.hash.count, copies, most)
	}
	for i := range copies {
		c.Apply(&format.List{Deleted: []format.ObjectID{format.NewObjectID(testWriter, uint64(i))}})
	}
	wantPrefix(t, c, chain, 0)
}

func TestPinsKeepObjectsFromTheCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCatalog(t, Options{})
		chain := randomKeys(seed.Random(t, 0), 64)
		objects := chainOf(1, chain, 16)
		apply(t, c, objects, 64)
		var p Pins
		if !p.Until().IsZero() {
			t.Error("pins of nothing end")
		}
		if n := c.Prefix(testSpace, shardZero, chain[:20], &p); n != 20 || !untilHalf(&p, 15*time.Minute) {
			t.Errorf("%d blocks, until %v", n, p.Until())
		}
		cold := c.Coldest(1 << 40)
		if len(cold) != 2 || slices.Contains(cold, objects[0].ID) || slices.Contains(cold, objects[1].ID) {
			t.Errorf("the coldest are %v", cold)
		}
		until := p.Until()
		time.Sleep(time.Minute)
		c.Prefix(testSpace, shardZero, chain[20:40], &p)
		if p.Until() != until {
			t.Error("more pins make the first hold for longer")
		}
		c.Apply(&format.List{Removed: []format.Removal{removal(&objects[1], 1)}})
		if got := c.Removed(100); got != nil {
			t.Errorf("a pinned object is to be deleted: %v", got)
		}
		c.Unpin(&p)
		if got := c.Removed(100); len(got) != 1 || len(c.Coldest(1<<40)) != 3 {
			t.Errorf("once they are let go of %v are to be deleted", got)
		}
	})
}

func TestAPartOfAChainIsPinnedAlone(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 64)
	first := chainOf(1, chain, 16)
	second := chainOf(100, chain[:24], 16)
	for i := range second {
		second[i].Shard = 1
	}
	apply(t, c, append(first, second...), 88)
	var p Pins
	if n := c.Prefix(testSpace, []connector.Shard{0, 1}, chain, &p); n != 24 {
		t.Errorf("%d blocks", n)
	}
	cold := c.Coldest(1 << 40)
	if len(p.objects) != 4 || len(cold) != 2 || slices.Contains(cold, first[1].ID) || !slices.Contains(cold, first[2].ID) {
		t.Errorf("%d pins, and %v may go", len(p.objects), cold)
	}
	c.Unpin(&p)
}

func TestUsesAreReportedNowAndThen(t *testing.T) {
	k := &clock{now: someTime}
	c := newCatalog(t, Options{Now: k.read})
	chain := randomKeys(seed.Random(t, 0), 64)
	objects := chainOf(1, chain, 16)
	for i := range objects {
		objects[i].Used = someTime - 1
	}
	apply(t, c, objects, 64)
	use := func() []format.ObjectID {
		var p Pins
		c.Prefix(testSpace, shardZero, chain[:20], &p)
		c.Unpin(&p)
		c.Used(testSpace, shardZero, []connector.Key{{1}, chain[63]})
		var ids []format.ObjectID
		for _, u := range c.Uses() {
			if u.When != k.now {
				t.Errorf("used at %d, now is %d", u.When, k.now)
			}
			ids = append(ids, u.Object)
		}
		return ids
	}
	if got := use(); got != nil {
		t.Errorf("used a second ago, and reported: %v", got)
	}
	k.now += 6 * 3600
	want := []format.ObjectID{objects[0].ID, objects[1].ID, objects[3].ID}
	if got := use(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := use(); got != nil {
		t.Errorf("reported again: %v", got)
	}
	k.now += 6 * 3600
	c.Apply(&format.List{Used: []format.Use{{Object: objects[0].ID, When: k.now}}}) // another node
	if got := use(); !slices.Equal(got, want[1:]) {
		t.Errorf("%v, want %v", got, want[1:])
	}
	wantPrefix(t, c, chain, 64) // with no pins it is no use
	if info, _ := c.Object(objects[2].ID); info.Used != someTime-1 {
		t.Errorf("used at %d", info.Used)
	}
}

func TestAUseMayComeBeforeItsObject(t *testing.T) {
	c := newCatalog(t, Options{})
	o := object(1, randomKeys(seed.Random(t, 0), 4), 0, 4)
	c.Apply(&format.List{Used: []format.Use{{Object: o.ID, When: 77}, {Object: o.ID, When: 60}}})
	apply(t, c, []format.Object{o}, 4)
	if info, ok := c.Object(o.ID); !ok || info.Used != 77 {
		t.Errorf("%+v, %v", info, ok)
	}
}

func TestTheColdestGoFirst(t *testing.T) {
	c := newCatalog(t, Options{})
	g := seed.Random(t, 0)
	chain := randomKeys(g, 64)
	objects := chainOf(1, chain, 16) // depths 0, 16, 32, 48
	for i, used := range []format.Seconds{someTime, someTime + 1, someTime + 2, someTime - 2*hourSeconds} {
		objects[i].Used = used
	}
	apply(t, c, objects, 64)
	size := int64(objects[0].Bytes)
	for want, bytes := range []int64{0, 1, size + 1, 3 * size} {
		got := c.Coldest(bytes)
		order := []format.ObjectID{objects[3].ID, objects[2].ID, objects[1].ID, objects[0].ID}
		if !slices.Equal(got, order[:want]) {
			t.Errorf("%d bytes: %v", bytes, got)
		}
	}
	if got := c.Unused(someTime - 1); len(got) != 1 || got[0] != objects[3].ID {
		t.Errorf("unused: %v", got)
	}
}

// An engine registers while the catalog is being changed: that may take seconds.
func TestHoldDuringAChange(t *testing.T) {
	c := newCatalog(t, Options{})
	c.Apply(&format.List{Objects: []format.Object{object(1, randomKeys(seed.Random(t, 0), 4), 0, 4)}})
	unknown := connector.NamespaceDigest{9}
	c.change(func() {
		for _, ns := range []connector.NamespaceDigest{testSpace, unknown} {
			c.HoldPayload(ns, 0, 2*testPayload)
			if n := c.PayloadBytes(ns, 0); n != 2*testPayload {
				t.Errorf("payloads of %d bytes are held", n)
			}
		}
	})
	chain := randomKeys(seed.Random(t, 1), 4)
	for i, bytes := range []uint32{testPayload, 2 * testPayload} { // the size that is held is served, wherever it was held first
		o := object(uint64(i+2), chain, 0, 4)
		o.Namespace, o.PayloadBytes = unknown, bytes
		c.Apply(&format.List{Objects: []format.Object{o}})
		if n := c.Prefix(unknown, shardZero, chain, nil); n != 4*i {
			t.Errorf("%d blocks with payloads of %d bytes", n, bytes)
		}
	}
	c.ReleasePayload(unknown, 0, 2*testPayload)
	if n := c.PayloadBytes(unknown, 0); n != testPayload {
		t.Errorf("payloads of %d bytes after the release", n)
	}
	c.HoldPayload(connector.NamespaceDigest{10}, 0, testPayload)
	c.ReleasePayload(connector.NamespaceDigest{10}, 0, testPayload)
	if len(c.heldShards) != 0 {
		t.Errorf("%d shards are remembered for nothing", len(c.heldShards))
	}
}

func TestTheSizeThatIsHeldIsServed(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 16)
	first, second := object(1, chain, 0, 8), object(2, chain, 0, 16)
	second.PayloadBytes = 2 * testPayload
	for i := range second.Records {
		second.Records[i].Start = uint16(int64(i) * format.SlotBytes(2*testPayload) / format.Unit)
	}
	second.Bytes = sizeOf(&second)
	if n := c.PayloadBytes(testSpace, 0); n != 0 {
		t.Errorf("%d bytes", n)
	}
	apply(t, c, []format.Object{first, second}, 24)
	check := func(bytes, blocks int) {
		t.Helper()
		if n := c.PayloadBytes(testSpace, 0); n != bytes {
			t.Errorf("%d bytes, want %d", n, bytes)
		}
		wantPrefix(t, c, chain, blocks)
	}
	check(testPayload, 8)
	c.HoldPayload(testSpace, 0, 2*testPayload)
	c.HoldPayload(testSpace, 0, 2*testPayload)
	c.HoldPayload(testSpace, 0, 3*testPayload)
	check(2*testPayload, 16)
	c.ReleasePayload(testSpace, 0, 2*testPayload)
	check(2*testPayload, 16)
	c.ReleasePayload(testSpace, 0, 2*testPayload)
	check(3*testPayload, 0)
	c.ReleasePayload(testSpace, 0, 3*testPayload)
	check(testPayload, 8)
	c.Lost(first.ID, format.CauseDamaged)
	check(2*testPayload, 16)
}

func TestWhatCannotBeReadIsNotOffered(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 16)
	sealed := object(1, chain, 0, 16)
	sealed.Needs = 1
	apply(t, c, []format.Object{sealed}, 0)
	wantPrefix(t, c, chain, 0)
	if s := c.Stats(); s.Unreadable != 16 || s.Objects != 1 || s.Bytes != int64(sealed.Bytes) || s.Records != 0 {
		t.Errorf("%+v", s)
	}
	if got := c.Coldest(1); len(got) != 1 { // the collector needs all
		t.Errorf("%v", got)
	}
}

func TestObjectsThatCannotBeEncodedArePassedOver(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 16)
	bad := make([]format.Object, 4)
	for i := range bad {
		bad[i] = object(uint64(i), chain, 0, 16)
	}
	bad[0].Records = nil
	bad[1].Runs = nil
	bad[2].Runs[0].First = 1
	bad[3].Records = make([]format.Record, format.MaxObjectRecords+1)
	apply(t, c, bad, 0)
	audit(t, c)
	apply(t, c, []format.Object{object(5, chain, 0, 16)}, 16)
}

func TestAnEmptiedBucketIsForgotten(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 5000)
	objects := chainOf(1, chain, 16)
	apply(t, c, objects, 5000)
	u, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	var p Pins
	c.Prefix(testSpace, shardZero, chain, &p)
	c.Forget()
	c.Unpin(&p)
	wantPrefix(t, c, chain, 0)
	if s := c.Stats(); s.Objects != 0 || s.Records != 0 || s.Bytes != 0 {
		t.Errorf("%+v", s)
	}
	if err := u.Snapshot(t.Context(), func(store.Resident) error { return nil }); !errors.Is(err, store.ErrLagged) {
		t.Errorf("a snapshot of what is forgotten: %v", err)
	}
	if _, err := u.Next(t.Context()); !errors.Is(err, store.ErrLagged) {
		t.Errorf("events after what is forgotten: %v", err)
	}
	apply(t, c, objects, 5000)
	wantPrefix(t, c, chain, 5000)
	if n := c.Prefix(testSpace, shardZero, chain, &p); n != 5000 {
		t.Errorf("%d blocks", n)
	}
	c.Unpin(&p)
}

func TestAClosedCatalogIsEmpty(t *testing.T) {
	c := newCatalog(t, Options{})
	chain := randomKeys(seed.Random(t, 0), 100)
	objects := chainOf(1, chain, 16)
	apply(t, c, objects, 100)
	var p Pins
	c.Prefix(testSpace, shardZero, chain, &p)
	c.HoldPayload(testSpace, 0, testPayload)
	u, err := c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	apply(t, c, objects, 0)
	wantPrefix(t, c, chain, 0)
	c.Present(testSpace, 0, chain, make([]bool, 100))
	c.Unpin(&p)
	c.Used(testSpace, shardZero, chain)
	c.ReleasePayload(testSpace, 0, testPayload)
	c.Forget()
	c.Objects(func(Info) bool { t.Error("an object"); return true })
	if _, ok := c.Locate(recordID(chain[0]), testPayload); ok || c.Lost(objects[0].ID, format.CauseLost) {
		t.Error("a record is found")
	}
	if _, ok := c.Object(objects[0].ID); ok || len(c.Coldest(1)) > 0 || c.Removed(1) != nil || c.PayloadBytes(testSpace, 0) != 0 {
		t.Error("an object is found")
	}
	if s := c.Stats(); s.IndexBytes != 0 || s.Records != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := u.Next(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Next: %v", err)
	}
	if _, err := c.Subscribe(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Subscribe: %v", err)
	}
	if _, err := c.SubscribeAfter(c.Epoch()+1, 0); !errors.Is(err, store.ErrLagged) {
		t.Errorf("SubscribeAfter: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []Options{{IndexBytes: 1}, {IndexBytes: -1}, {EventBytes: 1}, {Grace: -1}, {UseInterval: -1}} {
		o.Now = new(clock).read
		if _, err := New(o); err == nil {
			t.Error("it is accepted")
		}
	}
	if _, err := New(Options{}); err == nil {
		t.Error("a catalog without a clock")
	}
}

// TestConcurrentUse is for the race detector.
func TestConcurrentUse(t *testing.T) {
	c := newCatalog(t, Options{UseInterval: 1})
	g := seed.Random(t, 0)
	chain := randomKeys(g, 4000)
	lists := make([]format.List, 40)
	for i := range lists {
		lists[i].Objects = chainOf(uint64(1000*i), chain[:len(chain)-100*i], 16)
		for o := range lists[i].Objects {
			if id := lists[i].Objects[o].ID; i%2 == 0 && o%3 > 0 {
				lists[i].Removed = append(lists[i].Removed, format.Removal{Object: id, When: 1})
				lists[i].Deleted = append(lists[i].Deleted, id)
			}
		}
	}
	var all sync.WaitGroup
	for part := range 2 {
		all.Go(func() {
			for i := part; i < len(lists); i += 2 {
				c.Apply(&lists[i])
			}
		})
	}
	for range 2 {
		all.Go(func() {
			at := make([]bool, len(chain))
			for range 30 {
				var p Pins
				c.Prefix(testSpace, shardZero, chain, &p)
				c.Present(testSpace, 0, chain, at)
				if where, ok := c.Locate(recordID(chain[17]), testPayload); ok {
					c.Lost(where.Object, format.CauseLost)
				}
				c.Used(testSpace, shardZero, chain)
				c.Unpin(&p)
				c.Coldest(1 << 20)
				c.Uses()
				c.Stats()
			}
		})
	}
	all.Go(func() {
		for range 5 {
			u, err := c.Subscribe(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			if err := u.Snapshot(t.Context(), func(store.Resident) error { return nil }); err != nil {
				t.Error(err)
			}
			_ = u.Close()
		}
	})
	all.Wait()
}
