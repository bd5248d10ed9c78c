package index

import "github.com/kvconn/kvconn/connector"

// Insertion is a record to add to the table.
type Insertion struct {
	ID     ID
	Parent connector.Key
	Ref    Ref
	Seq    uint64
	Bytes  uint32

	// Set by Place and Insert: what the journal keeps of the record, and whether it was
	// added (false if its identity was there already).
	Added     bool
	ParentRef Ref
	Tick      uint32
	Depth     uint16
}

// Insert adds records in the order given, parents before their children. A record whose
// parent is there takes its parent's recency, and the whole chain is touched if that
// lies back: no parent is ever older than its children.
func (t *Table) Insert(batch []Insertion) {
	if len(batch) == 0 {
		return
	}
	now := t.nextTick()
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		t.insert(&batch[i], now)
	}
	t.moveOne()
}

func (t *Table) insert(in *Insertion, now uint32) {
	in.Added, in.ParentRef, in.Tick, in.Depth = false, NoRef, now, 0
	if t.closed {
		return
	}
	h := in.ID.hash()
	s := &t.shards[shardOf(h)]
	if _, _, ok := t.position(s, h, &in.ID); ok {
		return
	}
	if in.Parent != (connector.Key{}) {
		in.ParentRef = t.find(&ID{in.ID.Namespace, in.ID.Shard, in.Parent})
	}
	var p *entry
	if in.ParentRef != NoRef {
		p = t.entry(in.ParentRef)
		if now-p.tick() > parentLag {
			t.touchChain(in.ParentRef, now)
		}
		in.Tick = p.tick()
	}
	e := t.entry(in.Ref)
	pins := e.use & pinMask // a writer may hold the slot
	*e = entry{
		key: in.ID.Key, namespace: in.ID.Namespace, shard: in.ID.Shard,
		seq: in.Seq, bytes: in.Bytes, use: uint64(in.Tick)<<tickShift | pins,
	}
	e.place(in.ParentRef, p)
	in.Depth = e.depth
	t.put(h, in.Ref)
	t.count++
	t.bytes += int64(in.Bytes)
	in.Added = true
}

// touchChain raises the tick of a record and of its ancestors, up to the first that is
// as recent.
func (t *Table) touchChain(ref Ref, tick uint32) {
	for ref != NoRef {
		e := t.entry(ref)
		if e.seq == 0 || e.tick() >= tick {
			return
		}
		e.touch(tick, 0)
		ref = t.validParent(e)
	}
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
	if t.cut(&out.ID) != ref {
		panic("index: a record is in two slots")
	}
	t.count--
	t.bytes -= int64(e.bytes)
	e.seq = 0
	return out, true
}

// Victim is a candidate for eviction.
type Victim struct {
	Ref   Ref
	Seq   uint64
	order uint64
}

// Evict takes victims out of the table that were not used since they were chosen and
// are not pinned, in their order, until want are out. It appends them to out and returns
// the rest of victims.
func (t *Table) Evict(victims []Victim, want int, out []Removed) ([]Victim, []Removed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(victims) > 0 && want > 0 {
		v := victims[0]
		victims = victims[1:]
		if t.closed {
			continue
		}
		e := t.entry(v.Ref)
		if e.seq != v.Seq || e.order() != v.order || e.pins() > 0 {
			continue
		}
		if r, ok := t.remove(v.Ref, v.Seq); ok {
			out = append(out, r)
			want--
		}
	}
	return victims, out
}

// Place says where Insert will put the records of a batch within their chains: parent,
// depth and recency, for the journal, which is written first.
func (t *Table) Place(batch []Insertion) {
	if len(batch) == 0 {
		return
	}
	now := t.clock.Load() + 1
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i := range batch {
		in := &batch[i]
		in.ParentRef, in.Tick, in.Depth = NoRef, now, 0
		if in.Parent == (connector.Key{}) {
			continue
		}
		parent := ID{in.ID.Namespace, in.ID.Shard, in.Parent}
		if ref := t.find(&parent); ref != NoRef {
			in.ParentRef = ref
			in.Depth = t.entry(ref).childDepth()
			continue
		}
		// Batches hold chains in order: the parent is most often the record before.
		for k := i - 1; k >= 0 && k >= i-placeBack; k-- {
			if batch[k].ID == parent {
				in.ParentRef, in.Depth = batch[k].Ref, min(batch[k].Depth, maxDepth-1)+1
				break
			}
		}
	}
}

// placeBack is how far back in a batch a parent is looked for.
const placeBack = 32

// Empty takes all records of a range that are not pinned out of the table, and returns
// how many are left.
func (t *Table) Empty(r Range, out []Removed) (removed []Removed, left int) {
	for from := uint32(0); from < r.Slots; from += scanRun {
		end := r.Base + Ref(min(from+scanRun, r.Slots))
		t.mu.Lock()
		for ref := r.Base + Ref(from); ref < end && !t.closed; ref++ {
			e := t.entry(ref)
			switch {
			case e.pins() > 0:
				left++
			case e.seq != 0:
				if rm, ok := t.remove(ref, e.seq); ok {
					out = append(out, rm)
				}
			}
		}
		t.mu.Unlock()
	}
	return out, left
}

// PinSlot holds the record of a slot, if there is one, until Unpin.
func (t *Table) PinSlot(ref Ref) (ID, Found, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || ref >= t.limit {
		return ID{}, Found{}, false
	}
	e := t.entry(ref)
	if e.seq == 0 {
		return ID{}, Found{}, false
	}
	e.pin()
	return ID{e.namespace, e.shard, e.key}, Found{Ref: ref, Seq: e.seq, Bytes: e.bytes}, true
}
