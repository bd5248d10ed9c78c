package pricing

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// Tiers says where the blocks of an offer up to a boundary lie, in tokens by tier. A block counts
// for the slowest tier that any layer group loads it from; one that no group loads, since it is
// before all windows, for the fastest.
func (p *Price) Tiers(have *Presence, keys []connector.Key, first, boundary int) (out [connector.MaxTiers]connector.TierTokens) {
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
		p.locate(have.NS, g, keys[first+begin:boundary])
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
