package index

import (
	"time"

	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/index/victim"
)

// tenantRun is how many slots are looked at for a tenant's records under one hold of the lock: most are another's.
const tenantRun = 4 * scanRun

// Hit notes that a look-up has found blocks, and returns whose they are. The record of the slot is one of them, and pinned.
func (t *Table) Hit(ref Ref, blocks int, now time.Time) (id tenants.ID) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		id = t.tenants.Hit(t.tenants.At(uint32(ref)), blocks, now)
	}
	return id
}

// EmptyTenant is [Table.EmptyOf] for a tenant, in all namespaces.
func (t *Table) EmptyTenant(id tenants.ID, upTo uint64, from Ref, out []Removed) (removed []Removed, left int, next Ref) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := len(out)
	has, number := t.tenants.Tenant(id)
	for next = from; next < from+tenantRun && len(out)-before < removeRun; next++ {
		if t.closed || next >= t.limit || has.ID != id || has.Records == 0 {
			return out, left, NoRef
		}
		if t.tenants.At(uint32(next)) != number {
			continue
		}
		switch e := t.entry(next); {
		case e.seq == 0 || e.seq > upTo:
		case e.pins() > 0:
			left++
		default:
			r, _ := t.remove(next, e.seq)
			out = append(out, r)
		}
	}
	return out, left, next
}

// Coldest offers all records that are not pinned to the selections of their tenants; of has one for some numbers.
func (t *Table) Coldest(of []*victim.Selection) {
	var seen [tenantRun]Victim
	var whose [tenantRun]tenants.Number
	for from := Ref(0); from != NoRef; {
		var n int
		n, from = t.coldestRun(of, from, &seen, &whose)
		for i := range n { // a selection sorts, which no one should wait for
			of[whose[i]].Offer(seen[i])
		}
	}
}

func (t *Table) coldestRun(of []*victim.Selection, from Ref, seen *[tenantRun]Victim, whose *[tenantRun]tenants.Number) (n int, next Ref) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.closed || from >= t.limit {
		return 0, NoRef
	}
	for i, number := range t.tenants.Chunk(uint32(from))[:min(tenantRun, t.limit-from)] {
		if int(number) >= len(of) || of[number] == nil {
			continue
		}
		ref := from + Ref(i)
		if e := t.entry(ref); e.seq != 0 && e.pins() == 0 {
			seen[n], whose[n] = Victim{Ref: ref, Seq: e.seq, Order: t.order(e)}, number
			n++
		}
	}
	return n, from + tenantRun
}

// EvictOf takes victims that are a tenant's out of the table, in their order, until that has freed a number of bytes, or
// [evictRun] are gone, or [scanRun] were looked at. Records that were used since they were selected, or are pinned, stay. It appends what it took to
// out, and returns the victims that it has not come to.
func (t *Table) EvictOf(id tenants.ID, list []Victim, bytes int64, out []Removed) (removed []Removed, rest []Victim, freed int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	has, number := t.tenants.Tenant(id)
	before, end := len(out), list[min(len(list), scanRun):]
	for ; len(list) > len(end) && freed < bytes && len(out)-before < evictRun && !t.closed; list = list[1:] {
		v := list[0]
		if has.ID != id || v.Ref >= t.limit || t.tenants.At(uint32(v.Ref)) != number {
			continue
		}
		e := t.entry(v.Ref)
		if e.seq != v.Seq || e.pins() > 0 || t.order(e) != v.Order {
			continue
		}
		size := tenants.SlotBytes(e.bytes)
		if r, ok := t.remove(v.Ref, v.Seq); ok {
			out, freed = append(out, r), freed+size
		}
	}
	return out, list, freed
}
