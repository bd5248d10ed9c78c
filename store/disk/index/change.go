package index

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// Insertion is a record to add to the table.
type Insertion struct {
	ID     ID
	Parent connector.Key
	Ref    Ref
	Seq    uint64
	Bytes  uint32
	Tenant tenants.ID

	// Set by Place and Insert: what the journal keeps of the record, and whether it was
	// added (false if its identity was there already).
	Added     bool
	ParentRef Ref
	Tick      uint32
	Depth     uint16
}

func (in *Insertion) parentID() ID { return ID{in.ID.Namespace, in.ID.Shard, in.Parent} }

const (
	// insertRun is how many records are added under one hold of the lock, growingRun how many
	// while the table grows and each of them moves some thirty others.
	insertRun, growingRun = 256, 128
	// evictRun is how many victims are taken out under one hold.
	evictRun = 64
	// removeRun is how many records are removed under one hold.
	removeRun = 256
)

// Place says where Insert will put the records of a batch within their chains: parent
// and depth, for the journal, which is written first. A chain whose last use lies back
// counts as used: it is touched here, under the read lock, and Insert need not do it.
func (t *Table) Place(batch []Insertion) {
	now := t.clock.Load() + 1
	p := placer{climb: climb{t: t, tick: uint32(now), rest: NoRef}, batch: batch, now: now}
	p.lag = max(parentLag, (p.now-t.horizon.Load())/lagPart)
	for p.at < len(batch) || p.rest != NoRef {
		p.run()
	}
}

const (
	// parentLag is how far, in ticks, a parent's recency may be too old before an insertion below it
	// counts as a use of its whole chain; or this part of what lies between now and the last
	// use of what is being evicted, if that is more: an error of so little is not
	// worth a walk.
	parentLag = 64
	lagPart   = 256
	// placeRun is how many records are placed or touched under one hold of the lock.
	placeRun = 2048
	// placeBack is how far back in a batch a parent is looked for.
	placeBack = 32
)

// placer goes over a batch, and up the chains of its records.
type placer struct {
	climb
	batch    []Insertion
	now, lag uint64
	at       int
}

func (p *placer) run() {
	t := p.t
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		p.rest = NoRef
	}
	p.resume()
	p.warm()
	for budget := placeRun; budget > 0; budget-- {
		if p.rest == NoRef {
			if p.at == len(p.batch) {
				return
			}
			p.place()
			p.at++
		}
		budget -= p.climb.climb(budget)
	}
	p.pause()
}

// warm reads the buckets of the next parents together, so that their cache misses overlap.
func (p *placer) warm() {
	rest := p.batch[p.at:]
	p.t.warmBuckets(min(len(rest), insertRun), func(i int) uint64 {
		in := &rest[i]
		return hashOf(in.ID.Namespace, in.ID.Shard, &in.Parent)
	})
}

// place places the next record, and sets rest if its chain is to be touched.
func (p *placer) place() {
	t, in := p.t, &p.batch[p.at]
	in.ParentRef, in.Tick, in.Depth = NoRef, uint32(p.now), 0
	if in.Parent == (connector.Key{}) {
		return
	}
	parent := in.parentID()
	if ref := t.find(&parent); ref != NoRef {
		e := t.entry(ref)
		in.ParentRef, in.Depth = ref, e.childDepth()
		if t.full(e.tick())+p.lag < p.now {
			p.rest = ref
		}
		return
	}
	// Batches hold chains in order: the parent is most often the record before.
	for k := p.at - 1; k >= 0 && k >= p.at-placeBack; k-- {
		if b := &p.batch[k]; b.ID == parent {
			in.ParentRef, in.Depth = b.Ref, min(b.Depth, maxDepth-1)+1
			return
		}
	}
}

// Insert adds records in the order given, parents before their children. A record whose
// parent is there takes its parent's recency (see [Table.Place]), so that no parent is ever
// older than its children.
func (t *Table) Insert(batch []Insertion) {
	if len(batch) == 0 {
		return
	}
	now := uint32(t.nextTick())
	for len(batch) > 0 {
		n := insertRun
		if t.Growing() {
			n = growingRun
		}
		run := batch[:min(len(batch), n)]
		t.populate(len(run), func(i int) Ref { return run[i].Ref })
		t.warm(len(run), func(i int) uint64 { return run[i].ID.hash() })
		t.insertRun(run, now)
		batch = batch[len(run):]
	}
}

func (t *Table) insertRun(batch []Insertion, now uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		t.insert(&batch[i], now)
	}
}

func (t *Table) insert(in *Insertion, now uint32) {
	in.Added, in.ParentRef, in.Tick, in.Depth = false, NoRef, now, 0
	if t.closed {
		return
	}
	h := in.ID.hash()
	if _, _, _, ok := t.position(h, &in.ID); ok {
		return
	}
	if in.Parent != (connector.Key{}) {
		parent := in.parentID()
		in.ParentRef = t.find(&parent)
	}
	var p *entry
	if in.ParentRef != NoRef {
		p = t.entry(in.ParentRef)
		in.Tick = p.tick()
	}
	e := t.entry(in.Ref)
	*e = entry{
		key: in.ID.Key, namespace: in.ID.Namespace, shard: in.ID.Shard,
		seq: in.Seq, bytes: in.Bytes, use: recency.At(in.Tick, e.pins()), // a writer may hold the slot
	}
	e.place(in.ParentRef, p)
	in.Depth = e.depth
	t.add(h, in.Ref, e, in.Tenant)
	in.Added = true
}

// add makes a filled entry findable and counts it.
func (t *Table) add(h uint64, ref Ref, e *entry, tenant tenants.ID) {
	t.put(h, ref)
	t.count++
	t.bytes += int64(e.bytes)
	t.tenants.Add(uint32(ref), tenant, tenants.SlotBytes(e.bytes))
	t.cold.lower(ref, t.order(e))
}

// validParent returns the slot of an entry's parent, or NoRef if that slot is empty or
// holds a younger record than the one that was the parent.
func (t *Table) validParent(e *entry) Ref {
	if e.isPending() || e.parent == NoRef || e.parent >= t.limit {
		return NoRef
	}
	if p := t.entry(e.parent); p.seq == 0 || p.seq >= e.seq {
		return NoRef
	}
	return e.parent
}

// Removed is a record that was taken out of the table.
type Removed struct {
	ID  ID
	Seq uint64
	Ref Ref
}

// Hide makes a slot's record one that is not found. The slot must stay pinned until the record is
// removed, and no other with its identity be inserted before.
func (t *Table) Hide(ref Ref, seq uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed && !t.hidden[ref] && t.entry(ref).seq == seq {
		e := t.entry(ref)
		t.hidden[ref] = t.cut(&ID{e.namespace, e.shard, e.key}) == ref
	}
}

// Remove takes the record of a slot out of the table if it is still the one with that
// sequence number. It is found no more; the slot is to be reused only when it is not
// pinned.
func (t *Table) Remove(ref Ref, seq uint64) (Removed, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.remove(ref, seq)
}

func (t *Table) remove(ref Ref, seq uint64) (Removed, bool) {
	if t.closed || ref >= t.limit {
		return Removed{}, false
	}
	e := t.entry(ref)
	if e.seq == 0 || e.seq != seq {
		return Removed{}, false
	}
	out := Removed{ID: ID{e.namespace, e.shard, e.key}, Seq: e.seq, Ref: ref}
	if !t.hidden[ref] && t.cut(&out.ID) != ref {
		panic("index: a record is in two slots")
	}
	delete(t.hidden, ref)
	t.count--
	t.bytes -= int64(e.bytes)
	if e.pins()&keptBit != 0 {
		t.setKept(ref, e, false)
	}
	t.tenants.Remove(uint32(ref), tenants.SlotBytes(e.bytes))
	e.seq = 0
	return out, true
}

// Empty takes all records of a range that are not pinned out of the table, and returns
// how many are left.
func (t *Table) Empty(r Range, out []Removed) (removed []Removed, left int) {
	for from := uint32(0); from < r.Slots; from += removeRun {
		var n int
		out, n = t.emptyRun(r.Base+Ref(from), min(removeRun, r.Slots-from), out)
		left += n
	}
	return out, left
}

func (t *Table) emptyRun(base Ref, slots uint32, out []Removed) (removed []Removed, left int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref := base; ref < base+Ref(slots) && !t.closed; ref++ {
		e := t.entry(ref)
		switch {
		case e.held() > 0:
			left++
		case e.seq != 0:
			if e.pins() > 0 {
				t.kept.GivenUp++
			}
			if rm, ok := t.remove(ref, e.seq); ok {
				out = append(out, rm)
			}
		}
	}
	return out, left
}
