package leader

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// load is a load that was planned and not reported yet.
type load struct {
	step   uint64
	blocks []loadBlock
	// reported is set once a report that may be this load's was taken to be that of an older one.
	reported bool
	leases   []store.LeaseID
	handoff  *handoffPrefix
}

// loadBlock is a block of the request and where the load puts it.
type loadBlock struct {
	slot  uint32
	block int
}

// firstOf returns the first block of the load whose slot is among slots, or -1.
func (d *load) firstOf(slots map[uint32]struct{}) int {
	first := -1
	for _, b := range d.blocks {
		if _, ok := slots[b.slot]; ok && (first < 0 || b.block < first) {
			first = b.block
		}
	}
	return first
}

// appendOf appends the blocks of the load whose slots are among slots, each once, sorted.
func (d *load) appendOf(list []int, slots map[uint32]struct{}) []int {
	for _, b := range d.blocks {
		if _, ok := slots[b.slot]; ok {
			list = append(list, b.block)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// planLoad plans the load that the engine has allocated blocks for, if it took the offer. A request
// that this leader does not know, because it matched before a restart, gets a load that fails: the
// engine waits for one.
func (l *Leader) planLoad(a *connector.Alloc) (connector.RequestLoad, bool) {
	r := l.requests.find(a.Request)
	if a.External <= 0 {
		if r != nil {
			l.unpin(r) // the offer was not taken
		}
		return connector.RequestLoad{}, false
	}
	out := connector.RequestLoad{Request: a.Request}
	if r == nil {
		var unknown request
		unknown.reset(len(l.groups))
		out.Transfers = l.transfers(&unknown, a, new(load))
		out.Lose()
		return out, true
	}
	l.requests.touch(r)
	r.place(a.Blocks)
	d := &load{step: l.steps}
	known := min((a.Boundary()+l.bs-1)/l.bs, r.fullBlocks(l.bs))
	l.hash.keys(r, known)
	l.hash.proofs(r, known)
	l.pinLoad(r, a)
	d.leases, d.handoff, r.handoff = append(d.leases, r.leases...), r.handoff, nil
	r.leases, r.offered = r.leases[:0], 0
	l.room.promise(r, l.steps, 0)
	out.Transfers = l.transfers(r, a, d)
	if len(r.loads) == maxLoads {
		l.retire(r, r.loads[0])
		r.loads = append(r.loads[:0], r.loads[1:]...)
	}
	r.loads = append(r.loads, d)
	l.requests.count(r)
	l.stats.LoadTokens += uint64(a.External)
	return out, true
}

// maxLoads bounds the loads of one request that are not reported. An engine waits for each; only an
// engine that throws loads away has several.
const maxLoads = 8

// place sets the whole block table.
func (r *request) place(tables [][]uint32) {
	if len(tables) != len(r.tables) {
		return
	}
	for g := range tables {
		r.tables[g] = append(r.tables[g][:0], tables[g]...)
	}
	r.placed = true
}

// pinLoad makes the pins of r's offer last for the load. An engine that took less than it was
// offered may need other blocks of a window: they are pinned as well, and the load fails for those
// that are not there.
func (l *Leader) pinLoad(r *request, a *connector.Alloc) {
	l.renew(r.leases)
	if a.Boundary() == r.offered*l.bs {
		return
	}
	for i := range l.windows.Searches {
		w := l.windows.Searches[i].Group
		begin, end := a.LoadRange(w.Group, w.Index, l.bs)
		if end = min(end, len(r.keys)); begin < end {
			_, lease := l.index.Lookup(l.opts.Namespace, w.Shards, r.keys[begin:end], l.opts.LoadTTL)
			r.leases = appendLease(r.leases, lease)
		}
	}
}

// transfers lists the moves of a load, and notes in d the slots that it fills.
func (l *Leader) transfers(r *request, a *connector.Alloc, d *load) []connector.Transfer {
	var out []connector.Transfer
	for s := range a.Stretches(l.opts.Manifest) {
		for i, slot := range s.Slots {
			d.blocks = append(d.blocks, loadBlock{slot, s.First + i})
		}
		if l.opts.Handoff != nil {
			continue // the engine's side plans it
		}
		t := connector.Transfer{Group: s.Group, Blocks: make([]connector.PlanBlock, len(s.Slots))}
		for i, slot := range s.Slots {
			t.Blocks[i] = r.planBlock(s.First+i, slot)
		}
		if s.First <= len(r.keys) && r.roots != nil {
			t.Parent, t.Scope = r.parent(s.First), r.roots.Digest
		}
		out = append(out, t)
	}
	return out
}

// endLoad releases the pins of a load that has ended.
func (l *Leader) endLoad(d *load) {
	for _, id := range d.leases {
		l.index.Release(id)
	}
	d.leases = nil
	d.handoff.release()
	d.handoff = nil
}
