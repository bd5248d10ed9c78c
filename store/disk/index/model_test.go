package index

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/testkit/seed"
)

// model is what a table should hold, in a Go map, with the chains that it was given.
type model struct {
	t      *testing.T
	g      *rand.Rand
	keys   *rand.PCG
	table  *Table
	found  map[ID]Found
	ids    []ID // of found, in no order
	at     map[ID]int
	parent map[ID]connector.Key
	ranges []Range
	free   []Ref
	pinned map[Ref]bool // by others, at some time
	seq    uint64
	bytes  int64
}

func newModel(t *testing.T) *model {
	g := seed.Random(t, 0)
	table := New()
	table.hashes.GiveBytes = smallGive
	t.Cleanup(table.Close)
	return &model{t: t, g: g, keys: rand.NewPCG(g.Uint64(), 2), table: table, found: make(map[ID]Found),
		at: make(map[ID]int), parent: make(map[ID]connector.Key), pinned: make(map[Ref]bool)}
}

func (m *model) addSlots(n uint32) {
	base, err := m.table.AddSlots(n)
	if err != nil {
		m.t.Fatal(err)
	}
	r := Range{Base: base, Slots: n}
	m.ranges = append(m.ranges, r)
	m.table.Track(1, r, m.table.Clock())
	before := len(m.free)
	m.free = m.table.Survey(r, m.free)
	if len(m.free)-before != int(n) {
		m.t.Fatalf("%d of %d new slots are empty", len(m.free)-before, n)
	}
}

func (m *model) slot() Ref {
	if len(m.free) == 0 {
		m.addSlots(uint32(64 * (1 + m.g.IntN(60))))
	}
	i := m.g.IntN(len(m.free))
	ref := m.free[i]
	m.free[i] = m.free[len(m.free)-1]
	m.free = m.free[:len(m.free)-1]
	return ref
}

func (m *model) note(id ID, f Found, parent connector.Key) {
	m.found[id], m.at[id], m.parent[id] = f, len(m.ids), parent
	m.ids = append(m.ids, id)
	m.bytes += int64(f.Bytes)
}

func (m *model) gone(r Removed) {
	f, ok := m.found[r.ID]
	if !ok || f.Ref != r.Ref || f.Seq != r.Seq {
		m.t.Fatalf("removed %+v, the model has %+v %v", r, f, ok)
	}
	i, last := m.at[r.ID], len(m.ids)-1
	m.ids[i] = m.ids[last]
	m.at[m.ids[i]] = i
	m.ids = m.ids[:last]
	delete(m.found, r.ID)
	delete(m.at, r.ID)
	delete(m.parent, r.ID)
	m.bytes -= int64(f.Bytes)
	m.free = append(m.free, r.Ref)
}

// insert adds a batch of records: chains that go on from records that are there, new ones, and
// now and then a record that is there already.
func (m *model) insert(n int) {
	batch := make([]Insertion, n)
	last := ID{}
	for i := range batch {
		m.seq++
		in := Insertion{ID: ID{Namespace: uint16(m.g.IntN(2)), Shard: connector.Shard(m.g.IntN(3)), Key: randomKey(m.keys)},
			Ref: m.slot(), Seq: m.seq, Bytes: uint32(1 + m.g.IntN(9))}
		switch k := m.g.IntN(20); {
		case k == 0 && len(m.ids) > 0:
			in.ID = m.ids[m.g.IntN(len(m.ids))]
		case k == 1 && len(m.ids) > 0:
			up := m.ids[m.g.IntN(len(m.ids))]
			in.ID.Namespace, in.ID.Shard, in.Parent = up.Namespace, up.Shard, up.Key
		case k > 2 && last != ID{}:
			in.ID.Namespace, in.ID.Shard, in.Parent = last.Namespace, last.Shard, last.Key
		}
		last = in.ID
		batch[i] = in
	}
	m.table.Place(batch)
	m.table.Insert(batch)
	for i := range batch {
		in := &batch[i]
		if _, there := m.found[in.ID]; there == in.Added {
			m.t.Fatalf("insert %v: added %v, was there %v", in.ID, in.Added, there)
		}
		if in.Added {
			m.note(in.ID, Found{Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes}, in.Parent)
		} else {
			m.free = append(m.free, in.Ref)
		}
	}
}

// load adds records as a rebuild does, some of them other versions of what is there.
func (m *model) load(n int) {
	batch := make([]Loaded, n)
	for i := range batch {
		m.seq++
		batch[i] = Loaded{ID: ID{Namespace: 1, Key: randomKey(m.keys)}, Ref: m.slot(), Seq: m.seq, Bytes: 3, Parent: NoRef}
		if i > 0 {
			batch[i].ParentKey = batch[i-1].ID.Key
		}
		if m.g.IntN(10) == 0 && len(m.ids) > 0 {
			batch[i].ID = m.ids[m.g.IntN(len(m.ids))]
		}
	}
	m.g.Shuffle(n, func(i, k int) { batch[i], batch[k] = batch[k], batch[i] })
	lost := make(map[Ref]Removed)
	for _, r := range m.table.Load(batch, nil) {
		lost[r.Ref] = r
	}
	for i := range batch {
		in := &batch[i]
		if _, ok := lost[in.Ref]; ok {
			m.free = append(m.free, in.Ref)
			continue
		}
		if old, there := m.found[in.ID]; there {
			if _, ok := lost[old.Ref]; !ok || old.Seq > in.Seq {
				m.t.Fatalf("load %v: the older record stays", in.ID)
			}
			m.gone(Removed{in.ID, old.Seq, old.Ref})
		}
		m.note(in.ID, Found{Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes}, in.ParentKey)
	}
}

// adopt has the table agree with the headers of a run of slots: most name what is there, others are
// blank, cannot be read, or name a record that is new, or an older or younger version of one
// elsewhere.
func (m *model) adopt() {
	if len(m.ranges) == 0 {
		return
	}
	r := m.ranges[m.g.IntN(len(m.ranges))]
	from := m.g.Uint32N(r.Slots)
	run := Range{Base: r.Base + Ref(from), Slots: min(1+m.g.Uint32N(100), r.Slots-from)}
	held := make(map[Ref]ID)
	for id, f := range m.found {
		if f.Ref >= run.Base && f.Ref < run.Base+Ref(run.Slots) {
			held[f.Ref] = id
		}
	}
	var batch []Adopted
	var unread []Ref
	twice := false
	for ref := run.Base; ref < run.Base+Ref(run.Slots); ref++ {
		id, there := held[ref]
		in := Insertion{ID: ID{Key: randomKey(m.keys)}, Ref: ref, Seq: m.seq + 1, Bytes: 5}
		switch k := m.g.IntN(12); {
		case k == 0:
			unread = append(unread, ref)
			continue
		case k == 1:
			continue // blank
		case k == 2: // a new record
		case k == 3 && !there && !twice && len(m.ids) > 0: // a version of one that is elsewhere
			in.ID, twice = m.ids[m.g.IntN(len(m.ids))], true
			if f := m.found[in.ID]; f.Ref >= run.Base && f.Ref < run.Base+Ref(run.Slots) {
				continue
			} else if f.Seq > 1 && m.g.IntN(2) == 0 {
				in.Seq = f.Seq - 1
			}
		case there:
			in.ID, in.Seq, in.Bytes = id, m.found[id].Seq, m.found[id].Bytes
		default:
			continue
		}
		m.seq = max(m.seq, in.Seq)
		batch = append(batch, Adopted{Insertion: in})
	}
	before := maps.Clone(m.found)
	m.table.PrepareAdopt(batch)
	for _, gone := range m.table.Adopt(run, batch, unread, func(ID) bool { return false }, nil) {
		m.gone(gone)
	}
	for i := range batch {
		in := &batch[i]
		was, there := before[in.ID]
		if known := there && was.Seq == in.Seq; known != in.Known || in.Added != (!there || was.Seq < in.Seq) {
			m.t.Fatalf("adopt %v of %d: known %v, added %v; it was there %v with %d", in.ID, in.Seq, in.Known, in.Added, there, was.Seq)
		}
		if in.Added {
			m.free = slices.DeleteFunc(m.free, func(ref Ref) bool { return ref == in.Ref })
			m.note(in.ID, Found{Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes}, in.Parent)
		}
	}
}

func (m *model) remove() {
	if len(m.ids) == 0 {
		return
	}
	id := m.ids[m.g.IntN(len(m.ids))]
	f := m.found[id]
	if _, ok := m.table.Remove(f.Ref, f.Seq+1); ok {
		m.t.Fatal("removed a record of another sequence number")
	}
	r, ok := m.table.Remove(f.Ref, f.Seq)
	if !ok {
		m.t.Fatalf("%v is not there to be removed", id)
	}
	m.gone(r)
}

func (m *model) evict(n int) {
	for _, r := range evictAll(m.table, n) {
		m.gone(r)
	}
}

// giveUp empties a range and takes it out.
func (m *model) giveUp() {
	if len(m.ranges) < 2 {
		return
	}
	i := m.g.IntN(len(m.ranges))
	r := m.ranges[i]
	m.table.Untrack(r)
	removed, left := m.table.Empty(r, nil)
	if left > 0 {
		m.t.Fatalf("%d records are left", left)
	}
	for _, rm := range removed {
		m.gone(rm)
	}
	kept := m.free[:0]
	for _, ref := range m.free {
		if ref < r.Base || ref >= r.Base+Ref(r.Slots) {
			kept = append(kept, ref)
		}
	}
	m.free = kept
	m.table.DropSlots(r.Base, r.Slots)
	m.ranges = append(m.ranges[:i], m.ranges[i+1:]...)
}

// check compares table and model as wholes.
func (m *model) check() {
	m.t.Helper()
	if m.table.Len() != len(m.found) || m.table.PayloadBytes() != m.bytes {
		m.t.Fatalf("%d records of %d bytes, want %d of %d", m.table.Len(), m.table.PayloadBytes(), len(m.found), m.bytes)
	}
	for id, want := range m.found {
		got, ok := m.table.Get(id, false)
		got.Depth = 0 // the model does not follow chains
		if !ok || got != want {
			m.t.Fatalf("get %v: %+v %v, want %+v", id, got, ok, want)
		}
	}
	n := 0
	for _, r := range m.ranges {
		for _, in := range m.table.Describe(r, nil) {
			n++
			if in.ParentRef != NoRef && in.Parent != m.parent[in.ID] {
				m.t.Fatalf("%v has parent %v, want %v", in.ID, in.Parent, m.parent[in.ID])
			}
		}
	}
	if n != len(m.found) {
		m.t.Fatalf("%d records in the slots, want %d", n, len(m.found))
	}
}

// checkOrder fails if a parent is older than a child, or if a group holds a record that
// comes before the group's bound and is no chosen victim. A slot that was pinned when a choice looked at it counts as used
// then, without a trace once it is not: those that others have pinned are left out.
func (m *model) checkOrder() {
	t := m.table
	t.mu.Lock()
	defer t.mu.Unlock()
	class := t.cold.classes[1]
	chosen := make(map[Ref]bool)
	for _, v := range class.victims {
		chosen[v.Ref] = true
	}
	for _, f := range m.found {
		e := t.entry(f.Ref)
		if p := t.validParent(e); p != NoRef && t.full(t.entry(p).tick()) < t.full(e.tick()) {
			m.t.Fatalf("slot %d: used %d ticks after its parent", f.Ref, t.full(e.tick())-t.full(t.entry(p).tick()))
		}
		p := t.cold.place(f.Ref)
		if bound := class.bounds.Bound(p.leaf); bound > t.order(e) && !chosen[f.Ref] && !m.pinned[f.Ref] {
			m.t.Fatalf("slot %d: order %x, its group's bound is %x", f.Ref, t.order(e), bound)
		}
	}
}

// TestTableBehavesLikeAMapWhileItGrowsAndIsRead drives a table and a map with random
// operations, through several growths, while others look up what comes and goes.
func TestTableBehavesLikeAMapWhileItGrowsAndIsRead(t *testing.T) {
	m := newModel(t)
	var shared [256]atomic.Pointer[ID] // for the readers
	var stop atomic.Bool
	var readers sync.WaitGroup
	var mu sync.Mutex // of m.pinned
	for i := range 2 {
		readers.Go(func() {
			seen := make(map[Ref]bool)
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				maps.Copy(m.pinned, seen)
			}()
			g := rand.New(rand.NewPCG(uint64(i), 3))
			var pins []Ref
			for !stop.Load() {
				id := shared[g.IntN(len(shared))].Load()
				if id == nil {
					continue
				}
				n, refs := m.table.Prefix(id.Namespace, []connector.Shard{id.Shard}, []connector.Key{id.Key}, pins[:0])
				if n != len(refs) {
					t.Errorf("%d blocks, %d pins", n, len(refs))
				}
				for _, ref := range refs {
					seen[ref] = true
					if got, f, ok := m.table.PinSlot(ref); ok {
						if f.Ref != ref || got.Key == (connector.Key{}) {
							t.Errorf("slot %d: %v %+v", ref, got, f)
						}
						m.table.Unpin(ref)
					}
				}
				m.table.Unpin(refs...)
				pins = refs
			}
		})
	}
	defer readers.Wait()
	defer stop.Store(true)
	grown, before := 0, m.table.hashes.Region
	for step := range 1500 {
		switch k := m.g.IntN(100); {
		case k < 70:
			m.insert(1 + m.g.IntN(60))
		case k < 80:
			m.load(1 + m.g.IntN(60))
		case k < 95:
			m.remove()
		case k < 98:
			m.evict(m.g.IntN(100))
		case k < 99:
			for _, r := range m.ranges {
				m.table.Resolve(r)
			}
		default:
			m.adopt()
		}
		if len(m.ids) > 0 {
			id := m.ids[m.g.IntN(len(m.ids))]
			shared[step%len(shared)].Store(&id)
		}
		if m.table.hashes.Region != before {
			grown, before = grown+1, m.table.hashes.Region
		}
		if step%300 == 299 {
			m.check()
		}
	}
	if grown < 4 {
		t.Errorf("the table grew %d times", grown)
	}
	stop.Store(true)
	readers.Wait()
	m.giveUp()
	m.giveUp()
	for _, r := range m.ranges {
		m.table.Resolve(r)
	}
	m.check()
	m.checkOrder()
	m.evict(len(m.ids) / 2)
	m.insert(200)
	m.check()
}
