package index

import "github.com/kvconn/kvconn/store/disk/index/tenants"

// keptBit, among the pins of an entry, says that an administrator wants the record kept: it is evicted in turn no more than
// one that is in use. What gives up whole segments, and what removes records, looks at the other pins alone.
const keptBit = 1 << 31

// held is the number of pins of those that use the slot.
func (e *entry) held() uint32 { return e.pins() &^ keptBit }

// Kept is how many records are kept, and the bytes of their payloads. GivenUp were kept and went with a segment.
type Kept struct {
	Records, Bytes int64
	GivenUp        uint64
}

// Kept returns what is kept.
func (t *Table) Kept() Kept {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.kept
}

// Keep has records kept, or no more, those of refs that still have the sequence numbers seqs. It stops before there are more
// bytes than maxBytes of what is kept, and returns how many records it has changed.
func (t *Table) Keep(refs []Ref, seqs []uint64, keep bool, maxBytes int64) (changed int) {
	for len(refs) > 0 {
		n := min(len(refs), removeRun)
		changed += t.keepRun(refs[:n], seqs[:n], keep, maxBytes)
		refs, seqs = refs[n:], seqs[n:]
	}
	return changed
}

func (t *Table) keepRun(refs []Ref, seqs []uint64, keep bool, maxBytes int64) (changed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, ref := range refs {
		if t.closed || ref >= t.limit {
			continue
		}
		e := t.entry(ref)
		if e.seq == 0 || e.seq != seqs[i] || (e.pins()&keptBit != 0) == keep || keep && t.kept.Bytes+int64(e.bytes) > maxBytes {
			continue
		}
		t.setKept(ref, e, keep)
		changed++
	}
	return changed
}

// setKept changes whether the record of a slot is kept.
func (t *Table) setKept(ref Ref, e *entry, keep bool) {
	if keep {
		t.tenants.Pin(uint32(ref), tenants.SlotBytes(e.bytes))
		e.use.Set(keptBit)
		t.kept.Records, t.kept.Bytes = t.kept.Records+1, t.kept.Bytes+int64(e.bytes)
		return
	}
	t.tenants.Pin(uint32(ref), -tenants.SlotBytes(e.bytes))
	e.use.Clear(keptBit)
	t.kept.Records, t.kept.Bytes = t.kept.Records-1, t.kept.Bytes-int64(e.bytes)
}

// Keeps reports whether the record of a slot is kept.
func (t *Table) Keeps(ref Ref) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return !t.closed && t.entry(ref).pins()&keptBit != 0
}
