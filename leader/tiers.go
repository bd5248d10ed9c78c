package leader

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// tiers says where the blocks of an offer up to a boundary lie, in tokens by tier. A block counts
// for the slowest tier that any layer group loads it from; one that no group loads, since it is
// before all windows, for the fastest.
func (p *price) tiers(have *presence, keys []connector.Key, first, boundary int) (out [connector.MaxTiers]connector.TierTokens) {
	if len(p.levels) == 0 {
		return out
	}
	n := boundary - first
	p.first = first
	p.slowest = slices.Grow(p.slowest[:0], n)[:n]
	clear(p.slowest)
	for i := range p.groups {
		g := &p.groups[i]
		begin := g.begin(p, boundary)
		p.locate(have.ns, g.shards[0], keys[first+begin:boundary])
		for j, level := range p.where {
			p.slowest[begin+j] = max(p.slowest[begin+j], level)
		}
	}
	for _, level := range p.slowest {
		out[min(int(level), connector.MaxTiers-1)].Tokens += p.blockSize
	}
	for i := range min(len(p.levels), connector.MaxTiers) {
		out[i].Tier = p.levels[i].Name()
	}
	return out
}

// Trace returns the traceparent that a request came with, "" if there is none or the request is not
// known.
func (l *Leader) Trace(id string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.requests.find(id); r != nil {
		return string(r.trace)
	}
	return ""
}

// savedEntryBytes is what an entry of [connector.StepReply].Saves takes beside its request's id.
const savedEntryBytes = 32

// tellSaves notes that blocks [first, end) of a group are saved, if the engine asked for it and the
// answer has room.
func (l *Leader) tellSaves(r *request, g *group, first, end int) {
	if n := savedEntryBytes + len(r.id); l.telling && n <= l.room.left {
		l.room.left -= n
		l.told = append(l.told, connector.PlannedSave{Request: string(r.id), Group: g.index, First: first, Count: end - first})
	}
}
