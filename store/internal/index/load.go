package index

import "github.com/kvconn/kvconn/connector"

// Loaded is a record found in the journal or in segment headers when a store opens.
type Loaded struct {
	ID     ID
	Ref    Ref
	Seq    uint64
	Bytes  uint32
	Parent Ref
	Tick   uint32
	Depth  uint16
}

// Load adds records while a store opens. Of two records of one identity the younger
// stays; Load returns those that lost.
func (t *Table) Load(batch []Loaded, lost []Removed) []Removed {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		in := &batch[i]
		h := in.ID.hash()
		s := &t.shards[shardOf(h)]
		if p := t.position(s, h, &in.ID); p >= 0 {
			old := s.refs[p]
			if t.entry(old).seq >= in.Seq {
				lost = append(lost, Removed{ID: in.ID, Seq: in.Seq, Ref: in.Ref})
				continue
			}
			if r, ok := t.remove(old, t.entry(old).seq); ok {
				lost = append(lost, r)
			}
		}
		*t.entry(in.Ref) = entry{
			key: in.ID.Key, namespace: in.ID.Namespace, shard: in.ID.Shard,
			seq: in.Seq, bytes: in.Bytes, parent: in.Parent, depth: in.Depth,
			use: uint64(in.Tick) << tickShift,
		}
		t.put(s, h, in.Ref)
		t.count++
		t.bytes += int64(in.Bytes)
	}
	return lost
}

// Settle is called once after the last Load: it makes every parent at least as recent as
// its children, as it was before the recency of uses was lost, and sets the clock.
func (t *Table) Settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	newest := uint32(0)
	for ref := Ref(0); ref < t.limit; ref++ {
		e := t.entry(ref)
		if e.seq == 0 {
			continue
		}
		newest = max(newest, e.tick())
		t.touchChain(t.validParent(e), e.tick())
	}
	t.clock.Store(max(newest, t.clock.Load()))
}

// Each calls f for the record of every slot of a range until f returns false. It holds the
// read lock for a few thousand slots at a time.
func (t *Table) Each(r Range, f func(ID, Found) bool) {
	for from := uint32(0); from < r.Slots; from += scanRun {
		if !t.each(r.Base+Ref(from), min(scanRun, r.Slots-from), f) {
			return
		}
	}
}

func (t *Table) each(base Ref, slots uint32, f func(ID, Found) bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return false
	}
	for ref := base; ref < base+Ref(slots); ref++ {
		e := t.entry(ref)
		if e.seq != 0 && !f(ID{e.namespace, e.shard, e.key}, Found{Ref: ref, Seq: e.seq, Bytes: e.bytes}) {
			return false
		}
	}
	return true
}

// Heat is the mean tick of a range's slots; an empty slot counts as 0. It reports false
// if a slot is pinned.
func (t *Table) Heat(r Range) (mean uint32, free bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || r.Slots == 0 {
		return 0, true
	}
	var sum uint64
	for ref := r.Base; ref < r.Base+Ref(r.Slots); ref++ {
		e := t.entry(ref)
		if e.pins() > 0 {
			return 0, false
		}
		if e.seq != 0 {
			sum += uint64(e.tick())
		}
	}
	return uint32(sum / uint64(r.Slots)), true
}

// Tick is the tick of a victim's last use.
func (v Victim) Tick() uint32 { return uint32(v.order >> 16) }

// Order is the eviction order of a record with that tick and depth.
func Order(tick uint32, depth uint16) uint64 { return order(tick, depth) }

// Order is the victim's place in the order of eviction.
func (v Victim) Order() uint64 { return v.order }

// Link sets the parents of loaded records, given by key, and their depths.
func (t *Table) Link(parents map[Ref]connector.Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref, key := range parents {
		if e := t.entry(ref); e.seq != 0 && key != (connector.Key{}) {
			e.parent = t.find(ID{e.namespace, e.shard, key})
		}
	}
	var path []Ref
	done := make(map[Ref]bool, len(parents))
	for ref := range parents {
		// Up to the first record whose depth is known, and down again.
		path = path[:0]
		for ref != NoRef && !done[ref] && t.entry(ref).seq != 0 {
			done[ref] = true
			path = append(path, ref)
			ref = t.validParent(t.entry(ref))
		}
		for i := len(path) - 1; i >= 0; i-- {
			e := t.entry(path[i])
			if p := t.validParent(e); p != NoRef {
				e.depth = t.entry(p).childDepth()
			}
		}
	}
}

// Describe returns the records of a range as insertions.
func (t *Table) Describe(r Range) []Insertion {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var out []Insertion
	for ref := r.Base; ref < r.Base+Ref(r.Slots); ref++ {
		e := t.entry(ref)
		if e.seq == 0 {
			continue
		}
		out = append(out, Insertion{
			ID: ID{e.namespace, e.shard, e.key}, Ref: ref, Seq: e.seq, Bytes: e.bytes,
			ParentRef: e.parent, Tick: e.tick(), Depth: e.depth,
		})
	}
	return out
}
