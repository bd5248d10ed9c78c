package index

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store/disk/index/mintree"
	"github.com/kvconn/kvconn/store/disk/index/recency"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/index/written"
	"github.com/kvconn/kvconn/store/hashtable"
)

// Filling a table when a store opens, or while it is in use already:
//
//	Reserve(records)        if their number is known: quicker than growing with them
//	Load(batch, lost)       again and again, in any order, from any number of goroutines
//	Resolve(range)          for each range of slots, once everything is loaded
//
// Look-ups, insertions and evictions may go on between and beside these calls: Load and
// Resolve hold the lock for some tens of microseconds at a time. What Load was given is found
// at once. Until Resolve has seen it, eviction knows of a record that it is older than what
// was used since, but perhaps not which chain it belongs to.
//
// The order of use is lost with the process. What takes its place is the order of
// writing, which sequence numbers tell, in steps of at most a thousandth of the store. Every
// record loaded counts as used before every look-up and insertion.

// Loaded is a record found in the journal or in segment headers when a store opens.
type Loaded struct {
	ID     ID
	Ref    Ref
	Seq    uint64
	Bytes  uint32
	Tenant tenants.ID
	// Parent is the slot of the chain's previous block where it is known, with Depth the
	// number of blocks before this one. If Parent is NoRef, ParentKey names that block, zero
	// at the head of a chain; namespace and shard are those of ID. The block need not be
	// loaded yet: Resolve finds it. No memory is kept for it meanwhile beside the
	// record's entry.
	Parent    Ref
	Depth     uint16
	ParentKey connector.Key
}

// Load adds records. Of two records of one identity the younger stays; Load appends those
// that lost to lost: those of the batch that were not added, and those that were in the table
// and are out of it now. The slots of in.Ref must be tracked by no one else: no insertion
// may use them before.
func (t *Table) Load(batch []Loaded, lost []Removed) []Removed {
	for len(batch) > 0 {
		n := min(len(batch), loadRun)
		lost = t.loadRun(batch[:n], lost)
		batch = batch[n:]
	}
	return lost
}

// loadRun is how many records are loaded under one hold of the lock.
const loadRun = 128

func (t *Table) loadRun(batch []Loaded, lost []Removed) []Removed {
	t.populate(len(batch), func(i int) Ref { return batch[i].Ref })
	t.warm(len(batch), func(i int) uint64 { return batch[i].ID.hash() })
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range batch {
		in := &batch[i]
		if t.closed {
			return lost
		}
		if old := t.find(&in.ID); old != NoRef {
			if t.entry(old).seq >= in.Seq {
				lost = append(lost, Removed{ID: in.ID, Seq: in.Seq, Ref: in.Ref})
				continue
			}
			if r, ok := t.remove(old, t.entry(old).seq); ok {
				lost = append(lost, r)
			}
		}
		t.load(in)
	}
	return lost
}

func (t *Table) load(in *Loaded) {
	e := t.entry(in.Ref)
	*e = entry{
		key: in.ID.Key, namespace: in.ID.Namespace, shard: in.ID.Shard,
		seq: in.Seq, bytes: in.Bytes, parent: in.Parent, depth: in.Depth,
		use: recency.At(written.Tick(in.Seq), e.pins()),
	}
	if in.Parent == NoRef {
		t.link(e, &in.ID, in.ParentKey)
	}
	t.add(in.ID.hash(), in.Ref, e, in.Tenant)
}

// SeqBits is [written.SeqBits].
const SeqBits = written.SeqBits

// Reserve makes room for that many records at once, which is quicker than growing with
// them.
func (t *Table) Reserve(records int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.hashes.Blank() || records <= 0 {
		return nil
	}
	r, err := hashtable.NewRegion(max(hashtable.MinBuckets, records*hashtable.MaxLoadDen/hashtable.MaxLoadNum/hashtable.BucketSlots+1))
	if err != nil {
		return err
	}
	t.hashes.Region = r
	return nil
}

// Survey appends the slots of a range that hold no record to out, the last one first. It
// also learns what records there are to evict in a tracked range that was filled before it was
// tracked.
func (t *Table) Survey(r Range, out []Ref) []Ref {
	var sum, n uint64
	for end := r.Slots; end > 0; {
		begin := (end - 1) / scanRun * scanRun
		out = t.surveyRun(r.Base+Ref(begin), r.Base+Ref(end), out, &sum, &n)
		end = begin
	}
	if n > 0 {
		t.noteHeat(r, sum/n)
	}
	return out
}

func (t *Table) surveyRun(begin, end Ref, out []Ref, sum, n *uint64) []Ref {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed {
		return out
	}
	var bounds [scanRun / groupSlots]uint64
	for i := range bounds {
		bounds[i] = mintree.None
	}
	for ref := end; ref > begin; ref-- {
		e := t.entry(ref - 1)
		if e.seq == 0 {
			out = append(out, ref-1)
			continue
		}
		b := &bounds[(ref-1-begin)>>groupShift]
		*b = min(*b, t.order(e))
		*sum += t.full(e.tick())
		*n++
	}
	t.cold.mu.Lock()
	defer t.cold.mu.Unlock()
	for i := range bounds {
		if ref := begin + Ref(i<<groupShift); ref < end {
			t.cold.lower(ref, bounds[i])
		}
	}
	return out
}

// Describe appends the records of a range to out, as insertions. Parent is set where the
// parent is in the table.
func (t *Table) Describe(r Range, out []Insertion) []Insertion {
	for from := uint32(0); from < r.Slots; from += scanRun {
		out = t.describe(r.Base+Ref(from), min(scanRun, r.Slots-from), out)
	}
	return out
}

func (t *Table) describe(base Ref, slots uint32, out []Insertion) []Insertion {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for ref := base; ref < base+Ref(slots) && !t.closed; ref++ {
		e := t.entry(ref)
		if e.seq == 0 {
			continue
		}
		in := Insertion{
			ID: ID{e.namespace, e.shard, e.key}, Ref: ref, Seq: e.seq, Bytes: e.bytes,
			ParentRef: t.validParent(e), Tick: e.tick(), Depth: e.blocksBefore(),
		}
		if in.ParentRef != NoRef {
			in.Parent = t.entry(in.ParentRef).key
		}
		out = append(out, in)
	}
	return out
}
