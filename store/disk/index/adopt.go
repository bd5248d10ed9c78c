package index

import "github.com/kvconn/kvconn/connector"

// Adopted is a record that was found in a segment's header while the table is in use.
type Adopted struct {
	Insertion
	// Known is set if the table had the record already; ParentRef and Depth are then its
	// own.
	Known bool
}

// PrepareAdopt makes memory ready for [Table.Adopt] of the same batch: it may take the system
// some milliseconds, and is best called before the caller takes locks of its own.
func (t *Table) PrepareAdopt(batch []Adopted) {
	t.populate(len(batch), func(i int) Ref { return batch[i].Ref })
	t.warm(len(batch), func(i int) uint64 { return batch[i].ID.hash() })
}

// Adopt makes the table agree with the headers of a run of slots. batch are the records
// that the headers name, in ascending order of their slots; unread are slots whose header
// could not be read: nothing is known of them. A record of the table whose slot holds
// something else is taken out, and of two records of one identity the younger stays. A
// record that busy reports is left alone: a younger one is being written. What is taken
// out is appended to removed. The lock is held for some tens of microseconds at a time;
// records count as [Table.Load] has it, and [Table.Resolve] links those whose parents are
// adopted later.
func (t *Table) Adopt(r Range, batch []Adopted, unread []Ref, busy func(ID) bool, removed []Removed) []Removed {
	a := adopter{t: t, batch: batch, unread: unread, busy: busy, removed: removed}
	for from := uint32(0); from < r.Slots; from += loadRun {
		a.run(r.Base+Ref(from), min(loadRun, r.Slots-from))
	}
	return a.removed
}

// adopter goes over a run of slots.
type adopter struct {
	t       *Table
	batch   []Adopted
	unread  []Ref
	busy    func(ID) bool
	removed []Removed
}

func (a *adopter) run(base Ref, slots uint32) {
	t := a.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for ref := base; ref < base+Ref(slots) && !t.closed; ref++ {
		switch {
		case len(a.batch) > 0 && a.batch[0].Ref == ref:
			a.adopt(&a.batch[0])
			a.batch = a.batch[1:]
		case len(a.unread) > 0 && a.unread[0] == ref:
			a.unread = a.unread[1:]
		default:
			a.empty(ref)
		}
	}
}

// empty takes whatever record a slot has out of the table.
func (a *adopter) empty(ref Ref) {
	if seq := a.t.entry(ref).seq; seq != 0 {
		if gone, ok := a.t.remove(ref, seq); ok {
			a.removed = append(a.removed, gone)
		}
	}
}

func (a *adopter) adopt(in *Adopted) {
	t, e := a.t, a.t.entry(in.Ref)
	in.Added, in.Known, in.ParentRef = false, false, NoRef
	if e.seq == in.Seq && e.is(&in.ID) {
		in.Known = true
		if t.validParent(e) == NoRef && !e.isPending() {
			t.link(e, &in.ID, in.Parent)
		}
		in.ParentRef, in.Depth = t.validParent(e), e.blocksBefore()
		return
	}
	a.empty(in.Ref)
	if other := t.find(&in.ID); other != NoRef {
		if t.entry(other).seq >= in.Seq {
			return
		}
		a.empty(other)
	}
	if a.busy(in.ID) {
		return
	}
	t.load(&Loaded{ID: in.ID, Ref: in.Ref, Seq: in.Seq, Bytes: in.Bytes, Tenant: in.Tenant, Parent: NoRef, ParentKey: in.Parent})
	in.Added, in.ParentRef, in.Depth = true, t.validParent(e), e.blocksBefore()
}

// link puts an entry below the record with its parent's key, or has it await that record.
func (t *Table) link(e *entry, id *ID, parentKey connector.Key) {
	if parentKey == (connector.Key{}) {
		return
	}
	// Most often the parent was loaded before.
	parent := ID{id.Namespace, id.Shard, parentKey}
	if ref := t.find(&parent); ref != NoRef && t.entry(ref).seq < e.seq {
		e.place(ref, t.entry(ref))
	} else {
		e.await(parent.hash())
	}
}
