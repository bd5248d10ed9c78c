package index

import "github.com/kvconn/kvconn/connector"

// Adopted is a record that was found in a segment's header while the table is in use. Its
// Tick is what the journal is to keep; the table gives it its parent's until
// [Table.Resettle] is told what the journal knows.
type Adopted struct {
	Insertion
	// Known is set if the table had the record already; ParentRef and Depth are then its
	// own, and Relinked says that they changed.
	Known, Relinked bool
}

// Adopt makes the table agree with the headers of a run of slots. batch are the records
// that the headers name, in ascending order of their slots; unread are slots whose header
// could not be read, of which nothing is known. A record of the table whose slot holds
// something else is taken out, and of two records of one identity the younger stays. A
// record that busy reports is left alone: a younger one is being written. What is taken
// out is appended to removed.
func (t *Table) Adopt(r Range, batch []Adopted, unread []Ref, busy func(ID) bool, removed []Removed) []Removed {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return removed
	}
	next := 0
	for ref := r.Base; ref < r.Base+Ref(r.Slots); ref++ {
		switch {
		case next < len(batch) && batch[next].Ref == ref:
			removed = t.adopt(&batch[next], busy, removed)
			next++
		case len(unread) > 0 && unread[0] == ref:
			unread = unread[1:]
		default:
			removed = t.evictRef(ref, removed)
		}
	}
	t.moveOne()
	return removed
}

// evictRef takes whatever record a slot has out of the table. t.mu is held.
func (t *Table) evictRef(ref Ref, removed []Removed) []Removed {
	if seq := t.entry(ref).seq; seq != 0 {
		if gone, ok := t.remove(ref, seq); ok {
			removed = append(removed, gone)
		}
	}
	return removed
}

func (t *Table) adopt(in *Adopted, busy func(ID) bool, removed []Removed) []Removed {
	in.Added, in.Known, in.Relinked, in.ParentRef = false, false, false, NoRef
	e := t.entry(in.Ref)
	if e.seq == in.Seq && e.is(&in.ID) {
		t.relink(in, e)
		return removed
	}
	removed = t.evictRef(in.Ref, removed)
	if other := t.find(&in.ID); other != NoRef {
		if t.entry(other).seq >= in.Seq {
			return removed
		}
		removed = t.evictRef(other, removed)
	}
	if busy(in.ID) {
		return removed
	}
	tick := in.Tick
	if p := t.parentOf(in); p != NoRef {
		in.ParentRef, in.Depth = p, t.entry(p).childDepth()
		tick = t.entry(p).tick()
	}
	*e = entry{
		key: in.ID.Key, namespace: in.ID.Namespace, shard: in.ID.Shard,
		seq: in.Seq, bytes: in.Bytes, parent: in.ParentRef, depth: in.Depth,
		use: uint64(tick)<<tickShift | e.use&pinMask, // a reader may hold the slot
	}
	t.put(in.ID.hash(), in.Ref)
	t.count++
	t.bytes += int64(in.Bytes)
	in.Added = true
	return removed
}

// parentOf returns the slot of an older record with the parent's key, or NoRef.
func (t *Table) parentOf(in *Adopted) Ref {
	if in.Parent == (connector.Key{}) {
		return NoRef
	}
	p := t.find(&ID{in.ID.Namespace, in.ID.Shard, in.Parent})
	if p == NoRef || t.entry(p).seq >= in.Seq {
		return NoRef
	}
	return p
}

// relink sets the parent of a record that is in the table if that was not known.
func (t *Table) relink(in *Adopted, e *entry) {
	in.Known = true
	if t.validParent(e) == NoRef {
		if p := t.parentOf(in); p != NoRef {
			e.parent, in.Relinked = p, true
		}
	}
	if p := t.validParent(e); p != NoRef {
		if d := t.entry(p).childDepth(); d != e.depth && in.Relinked {
			e.depth = d
		}
	}
	in.ParentRef, in.Depth = e.parent, e.depth
}

// Relink sets the parents of records that are in the table and whose parents were not
// known when they were added.
func (t *Table) Relink(batch []Adopted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		in := &batch[i]
		in.Added, in.Known, in.Relinked, in.ParentRef = false, false, false, NoRef
		if t.closed || in.Ref >= t.limit {
			continue
		}
		if e := t.entry(in.Ref); e.seq == in.Seq && e.is(&in.ID) {
			t.relink(in, e)
		}
	}
}

// Orphan reports whether the record of a slot has no parent in the table.
func (t *Table) Orphan(ref Ref, seq uint64) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || ref >= t.limit {
		return false
	}
	e := t.entry(ref)
	return e.seq == seq && t.validParent(e) == NoRef
}

// Resettle gives the records of a range that were last used before tick since the recency
// that recency tells, and raises their ancestors to it: parents are as recent as their
// children. It holds the lock for some thousand records at a time, as lookups do.
func (t *Table) Resettle(r Range, since uint32, recency func(seq uint64) uint32) {
	for left := r.Slots; left > 0; {
		n := min(left, scanRun)
		left -= n
		t.resettle(Range{r.Base + Ref(left), n}, since, recency)
	}
}

// resettle goes from the last slot to the first, since the ends of chains most often lie
// after their heads: an ancestor is then raised once and not by each of its descendants.
func (t *Table) resettle(r Range, since uint32, recency func(seq uint64) uint32) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return
	}
	for ref := r.Base + Ref(r.Slots); ref > r.Base; ref-- {
		e := t.entry(ref - 1)
		if e.seq == 0 {
			continue
		}
		tick := e.tick()
		if tick < since {
			tick = max(tick, recency(e.seq))
			e.touch(tick, 0)
		}
		for p := t.validParent(e); p != NoRef; p = t.validParent(e) {
			if e = t.entry(p); e.tick() >= tick {
				break
			}
			e.touch(tick, 0)
		}
	}
}

// StartClock sets the clock of uses to at least tick.
func (t *Table) StartClock(tick uint32) {
	for {
		now := t.clock.Load()
		if now >= tick || t.clock.CompareAndSwap(now, tick) {
			return
		}
	}
}
