package catalog

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/object/format"
)

// model is what a catalog must say, as maps.
type model struct {
	*testing.T
	g       *rand.Rand
	c       *Catalog
	chains  [][]connector.Key
	objects []format.Object // there are
	lists   []format.List

	added, deleted, lost map[format.ObjectID]bool
	bare                 map[format.ObjectID]bool // removed before they were added
	removed, used        map[format.ObjectID]format.Seconds

	// The view of a subscriber.
	events store.Subscription
	view   map[store.RecordID]connector.Key
}

func newModel(t *testing.T, number int) *model {
	m := &model{T: t, g: seed.Random(t, number), c: newCatalog(t, Options{Now: func() format.Seconds { return someTime }})}
	m.reset(m.c)
	for range 6 {
		m.chains = append(m.chains, randomKeys(m.g, 40))
	}
	for i := range 120 {
		m.objects = append(m.objects, m.randomObject(uint64(i)))
	}
	m.lists = make([]format.List, 25)
	for i := range m.lists {
		m.randomList(&m.lists[i])
	}
	return m
}

// reset begins again with an empty catalog.
func (m *model) reset(c *Catalog) {
	m.c, m.bare = c, map[format.ObjectID]bool{}
	m.added, m.deleted, m.lost = map[format.ObjectID]bool{}, map[format.ObjectID]bool{}, map[format.ObjectID]bool{}
	m.removed, m.used = map[format.ObjectID]format.Seconds{}, map[format.ObjectID]format.Seconds{}
	m.subscribe()
}

// randomObject has one or two runs of chains, so that keys are in several.
func (m *model) randomObject(counter uint64) format.Object {
	a := m.chains[counter%6]
	from := m.g.IntN(30)
	o := object(counter, a, from, 1+m.g.IntN(10))
	o.Shard = connector.Shard(m.g.IntN(2))
	o.Used = someTime - format.Seconds(m.g.IntN(1e6))
	if m.g.IntN(2) == 0 {
		b := m.chains[(counter+1)%6]
		more := object(counter, b, 0, 1+m.g.IntN(5))
		more.Runs[0].First = uint16(len(o.Records))
		o.Runs = append(o.Runs, more.Runs...)
		o.Records = append(o.Records, more.Records...)
	}
	o.PayloadBytes = testPayload << m.g.IntN(2)
	for i := range o.Records {
		o.Records[i].Start = uint16(int64(i) * format.SlotBytes(int(o.PayloadBytes)) / format.Unit)
	}
	o.Bytes = sizeOf(&o)
	return o
}

// randomList has some objects, and news of some.
func (m *model) randomList(l *format.List) {
	for range m.g.IntN(16) {
		l.Objects = append(l.Objects, m.objects[m.g.IntN(len(m.objects))])
	}
	id := func() format.ObjectID { return m.objects[m.g.IntN(len(m.objects))].ID }
	for range m.g.IntN(6) {
		l.Used = append(l.Used, format.Use{Object: id(), When: someTime + format.Seconds(m.g.IntN(1000))})
	}
	for range m.g.IntN(5) {
		l.Removed = append(l.Removed, format.Removal{Object: id(), When: format.Seconds(m.g.IntN(1000)), Cause: format.CauseCap})
	}
	for range m.g.IntN(3) {
		l.Deleted = append(l.Deleted, id())
	}
}

func (m *model) apply(l *format.List) {
	before := m.sum()
	added, removed := m.c.Apply(l)
	for i := range l.Objects {
		o := &l.Objects[i]
		if _, removed := m.removed[o.ID]; removed && !m.added[o.ID] {
			m.bare[o.ID] = true
		}
		m.added[o.ID] = true
		m.used[o.ID] = max(m.used[o.ID], o.Used)
	}
	for _, u := range l.Used {
		m.used[u.Object] = max(m.used[u.Object], u.When)
	}
	for _, r := range l.Removed {
		if !m.deleted[r.Object] {
			m.removed[r.Object] = max(m.removed[r.Object], r.When)
		}
	}
	for _, id := range l.Deleted {
		m.deleted[id] = true
	}
	if after := m.sum(); added-removed != after-before {
		m.Fatalf("%d records came and %d went, and there were %d and are %d", added, removed, before, after)
	}
}

func (m *model) present(id format.ObjectID) bool {
	_, removed := m.removed[id]
	return m.added[id] && !removed && !m.deleted[id]
}

func (m *model) offered(id format.ObjectID) bool { return m.present(id) && !m.lost[id] }

// sum is how many records are offered.
func (m *model) sum() (n int) {
	for i := range m.objects {
		if m.offered(m.objects[i].ID) {
			n += len(m.objects[i].Records)
		}
	}
	return n
}

// has is the objects with a record that f accepts.
func (m *model) has(shard connector.Shard, payload uint32, key connector.Key, f func(format.ObjectID) bool) (ids []format.ObjectID) {
	for i := range m.objects {
		o := &m.objects[i]
		if o.Shard == shard && o.PayloadBytes == payload && f(o.ID) &&
			slices.ContainsFunc(o.Records, func(r format.Record) bool { return r.Key == key }) {
			ids = append(ids, o.ID)
		}
	}
	return ids
}

func (m *model) check() {
	m.Helper()
	audit(m, m.c)
	m.checkSums()
	for s := range connector.Shard(2) {
		payload := uint32(m.c.PayloadBytes(testSpace, s))
		for _, chain := range m.chains {
			m.checkChain(s, payload, chain)
		}
	}
	m.checkEvents()
}

func (m *model) checkSums() {
	m.Helper()
	var want Stats
	for i := range m.objects {
		o := &m.objects[i]
		_, removed := m.removed[o.ID]
		switch {
		case m.deleted[o.ID]:
			continue
		case m.present(o.ID):
			want.Objects++
			want.Bytes += int64(o.Bytes)
		case removed:
			want.LeavingObjects++
			if m.added[o.ID] {
				want.LeavingBytes += int64(o.Bytes)
			}
		}
		if info, known := m.c.Object(o.ID); known != (m.added[o.ID] || removed) || info.Offered != m.offered(o.ID) {
			m.Fatalf("object %v: %+v, %v", o.ID, info, known)
		} else if m.present(o.ID) && info.Used != m.used[o.ID] {
			m.Fatalf("object %v was used at %d, want %d", o.ID, info.Used, m.used[o.ID])
		}
	}
	want.Records = int64(m.sum())
	got := m.c.Stats()
	got.IndexBytes, got.EventBytes, got.LostObjects = 0, 0, 0
	if got != want {
		m.Fatalf("%+v, want %+v", got, want)
	}
}

func (m *model) checkChain(s connector.Shard, payload uint32, chain []connector.Key) {
	m.Helper()
	from := m.g.IntN(len(chain))
	want := 0
	for _, key := range chain[from:] {
		if len(m.has(s, payload, key, m.offered)) == 0 {
			break
		}
		want++
	}
	if n := m.c.Prefix(testSpace, []connector.Shard{s}, chain[from:], nil); n != want {
		m.Fatalf("%d blocks of a chain from %d on, want %d", n, from, want)
	}
	at := make([]bool, len(chain))
	m.c.Present(testSpace, s, chain, at)
	for i, key := range chain {
		offers := m.has(s, payload, key, m.offered)
		if at[i] != (len(offers) > 0) {
			m.Fatalf("block %d is present: %v, in %v", i, at[i], offers)
		}
		m.checkPlace(s, payload, key, offers)
	}
}

func (m *model) checkPlace(s connector.Shard, payload uint32, key connector.Key, offers []format.ObjectID) {
	m.Helper()
	if len(offers) == 0 { // it may be leaving
		offers = m.has(s, payload, key, func(id format.ObjectID) bool {
			return m.added[id] && !m.deleted[id] && !m.lost[id] && !m.bare[id]
		})
	}
	p, ok := m.c.Locate(store.RecordID{Namespace: testSpace, Shard: s, Key: key}, int(payload))
	if ok != (len(offers) > 0) || ok && !slices.Contains(offers, p.Object) {
		m.Fatalf("a record is at %+v, %v; want one of %v", p, ok, offers)
	}
	if ok {
		o := &m.objects[p.Object.Counter()]
		if from, bytes := o.Slot(int(p.Ordinal)); from != p.From || bytes != p.Bytes || o.Records[p.Ordinal].Key != key {
			m.Fatalf("%+v, want %d bytes at %d", p, bytes, from)
		}
	}
}

func (m *model) subscribe() {
	m.Helper()
	u, err := m.c.Subscribe(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = u.Close() })
	m.events, m.view = u, m.snapshot(u)
}

func (m *model) snapshot(u store.Subscription) map[store.RecordID]connector.Key {
	m.Helper()
	view := make(map[store.RecordID]connector.Key)
	if err := u.Snapshot(m.Context(), func(r store.Resident) error {
		if _, twice := view[r.ID]; twice {
			m.Errorf("record %v is in the snapshot twice", r.ID.Key)
		}
		view[r.ID] = r.Parent
		return nil
	}); err != nil {
		m.Fatal(err)
	}
	return view
}

// checkEvents checks that the events lead to what a snapshot of now has.
func (m *model) checkEvents() {
	m.Helper()
	u, err := m.c.Subscribe(m.Context())
	if err != nil {
		m.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	for m.events.Seq() < u.Seq() {
		list, err := m.events.Next(m.Context())
		if err != nil {
			m.Fatal(err)
		}
		for _, e := range list {
			_, there := m.view[e.ID]
			if there == (e.Kind == store.EventStored) {
				m.Fatalf("event %+v, and there was one: %v", e, there)
			}
			if delete(m.view, e.ID); e.Kind == store.EventStored {
				m.view[e.ID] = e.Parent
			}
		}
	}
	if now := m.snapshot(u); !maps.Equal(now, m.view) {
		m.Fatalf("%d records in the snapshot, %d by events", len(now), len(m.view))
	}
}

// TestCatalogBehavesLikeMaps applies random lists in random sequence, some again and again.
func TestCatalogBehavesLikeMaps(t *testing.T) {
	for round := range 6 {
		m := newModel(t, round)
		for range 40 {
			if m.g.IntN(8) == 0 {
				o := m.objects[m.g.IntN(len(m.objects))].ID
				_, removed := m.removed[o]
				if m.lost[o] && m.g.IntN(2) == 0 {
					m.c.Forgive(o)
					delete(m.lost, o)
				} else if (m.added[o] || removed) && !m.deleted[o] {
					m.c.Lost(o, format.CauseDamaged)
					m.lost[o] = true
				}
			} else {
				m.apply(&m.lists[m.g.IntN(len(m.lists))])
			}
			m.check()
		}
	}
}

// TestEverySequenceOfListsGivesOneCatalog applies the same lists in two sequences.
func TestEverySequenceOfListsGivesOneCatalog(t *testing.T) {
	for round := range 6 {
		m := newModel(t, round)
		var first []Info
		for range 3 {
			m.reset(newCatalog(t, Options{Now: func() format.Seconds { return someTime }}))
			order := append(m.g.Perm(len(m.lists)), m.g.Perm(len(m.lists))...)
			for _, i := range order {
				m.apply(&m.lists[i])
			}
			m.check()
			var all []Info
			m.c.Objects(func(i Info) bool { all = append(all, i); return true })
			slices.SortFunc(all, func(a, b Info) int { return slices.Compare(a.ID[:], b.ID[:]) })
			for i := range all {
				all[i].Cause = 0 // that of the list that came first
			}
			if first == nil {
				first = all
			} else if !slices.Equal(all, first) {
				t.Fatalf("%d objects, and %d after another sequence, or others", len(all), len(first))
			}
		}
	}
}

// TestASnapshotIsOfOneTime changes the catalog while snapshots are read, and memory is short of room.
func TestASnapshotIsOfOneTime(t *testing.T) {
	m := newModel(t, 0)
	for _, l := range m.lists {
		m.apply(&l)
	}
	u, err := m.c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = u.Close() }()
	m.check()
	want := maps.Clone(m.view)
	for i := range m.objects {
		switch i % 3 {
		case 0:
			m.c.Apply(&format.List{Removed: []format.Removal{removal(&m.objects[i], 5)}})
		case 1:
			m.c.Apply(&format.List{Deleted: []format.ObjectID{m.objects[i].ID}})
		case 2:
			m.c.Apply(&format.List{Objects: m.objects[i : i+1]})
		}
	}
	if got := m.snapshot(u); !maps.Equal(got, want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
	if m.c.holds.Load() != 0 {
		t.Error("a snapshot that was read keeps memory")
	}
	again, err := m.c.Subscribe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil || m.c.holds.Load() != 0 {
		t.Errorf("a snapshot that was closed: %v", err)
	}
	m.c.Objects(func(Info) bool { return false })
	if m.c.holds.Load() != 0 {
		t.Error("a list of objects that was read in part keeps memory")
	}
	stop := errors.New("stop")
	if again, err = m.c.Subscribe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := again.Snapshot(t.Context(), func(store.Resident) error { return stop }); !errors.Is(err, stop) || m.c.holds.Load() != 0 {
		t.Errorf("a snapshot that was read in part: %v", err)
	}
	_ = again.Close()
}
