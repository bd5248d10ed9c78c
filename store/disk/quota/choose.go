package quota

import (
	"github.com/kvconn/kvconn/store/disk/index"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/index/victim"
)

const (
	// scanRun is how many slots are looked at for a tenant's records under one hold of the index's lock.
	scanRun = 4096
	// evictRun is how many victims are taken out under one hold, evictLook how many are looked at.
	evictRun, evictLook = 64, 1024
)

// coldest offers all records that nothing holds and that are not kept to the selections of their tenants; of has one for some numbers.
func coldest(t *index.Table, of []*victim.Selection) {
	seen, whose := make([]index.Victim, 0, scanRun), make([]tenants.Number, 0, scanRun)
	for from, more := index.Ref(0), true; more; from += scanRun {
		seen, whose = seen[:0], whose[:0]
		t.View(func(v index.View) {
			if more = from < v.Limit(); !more {
				return
			}
			for i, number := range t.Tenants().Chunk(uint32(from))[:min(scanRun, v.Limit()-from)] {
				if int(number) >= len(of) || of[number] == nil {
					continue
				}
				if s := v.Slot(from + index.Ref(i)); s.Seq != 0 && s.Pins == 0 && !s.Kept {
					seen, whose = append(seen, s.Victim), append(whose, number)
				}
			}
		})
		for i := range seen { // a selection sorts, which no one should wait for
			of[whose[i]].Offer(seen[i])
		}
	}
}

// Take takes victims out of the table, and appends them to out, until that has freed the bytes that are wanted, or some
// are gone, or all were looked at. Records that were used since they were selected, are pinned, or are not the tenant's stay.
func (e *Eviction) Take(t *index.Table, out []index.Removed) []index.Removed {
	t.Change(func(c index.Change) {
		has, number := t.Tenants().Tenant(e.ID)
		before, end := len(out), e.Victims[min(len(e.Victims), evictLook):]
		for ; len(e.Victims) > len(end) && e.Freed < e.Bytes && len(out)-before < evictRun; e.Victims = e.Victims[1:] {
			v := e.Victims[0]
			if has.ID != e.ID || v.Ref >= c.Limit() || t.Tenants().At(uint32(v.Ref)) != number {
				continue
			}
			s := c.Slot(v.Ref)
			if s.Victim != v || s.Pins > 0 || s.Kept {
				continue
			}
			if r, ok := c.Remove(v.Ref, v.Seq); ok {
				out, e.Freed = append(out, r), e.Freed+tenants.SlotBytes(s.Bytes)
				e.Records++
			}
		}
	})
	return out
}
