package index

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
		if old := t.find(&in.ID); old != NoRef {
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
		t.put(in.ID.hash(), in.Ref)
		t.count++
		t.bytes += int64(in.Bytes)
	}
	t.moveOne()
	return lost
}

// Settle is called once after the last Load: it makes every parent at least as recent as
// its children, as it was before the recency of uses was lost, and sets the clock. It goes
// from the last slot to the first, since the ends of chains most often lie behind their
// heads: an ancestor is then raised once and not by each of its descendants.
func (t *Table) Settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.moveAll()
	newest := uint32(0)
	for ref := t.limit; ref > 0; ref-- {
		e := t.entry(ref - 1)
		if e.seq == 0 {
			continue
		}
		tick := e.tick()
		newest = max(newest, tick)
		for p := t.validParent(e); p != NoRef; {
			up := t.entry(p)
			if up.tick() >= tick {
				break
			}
			up.use = uint64(tick)<<tickShift | up.use&pinMask
			p = t.validParent(up)
		}
	}
	t.clock.Store(max(newest, t.clock.Load()))
}

// Reserve makes room for that many records at once, which is quicker than growing with
// them.
func (t *Table) Reserve(records int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.region != nil || t.next != nil || records <= 0 {
		return nil
	}
	r, err := newRegion(max(minShardBuckets, records*maxLoadDen/maxLoadNum/(hashShards*bucketSlots)+1))
	if err != nil {
		return err
	}
	t.region = r
	for i := range t.shards {
		t.shards[i].buckets = r.shard(i)
	}
	return nil
}

// EmptySlots appends the slots of a range that hold no record, the last one first.
func (t *Table) EmptySlots(r Range, out []Ref) []Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for ref := r.Base + Ref(r.Slots); ref > r.Base; ref-- {
		if t.entry(ref-1).seq == 0 {
			out = append(out, ref-1)
		}
	}
	return out
}

// Heat is the mean tick of a range's records, or empty if there are none. It reports false
// if a slot is pinned.
func (t *Table) Heat(r Range, empty uint32) (mean uint32, free bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return empty, true
	}
	var sum, n uint64
	for ref := r.Base; ref < r.Base+Ref(r.Slots); ref++ {
		e := t.entry(ref)
		if e.pins() > 0 {
			return 0, false
		}
		if e.seq != 0 {
			sum += uint64(e.tick())
			n++
		}
	}
	if n == 0 {
		return empty, true
	}
	return uint32(sum / n), true
}

// Clock is the tick of the last use.
func (t *Table) Clock() uint32 { return t.clock.Load() }

// Tick is the tick of a victim's last use.
func (v Victim) Tick() uint32 { return uint32(v.order >> 16) }

// Order is the eviction order of a record with that tick and depth.
func Order(tick uint32, depth uint16) uint64 { return order(tick, depth) }

// Order is the victim's place in the order of eviction.
func (v Victim) Order() uint64 { return v.order }

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
