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
	p.name(&out)
	return out
}

// TiersOf is [Price.Tiers] of the blocks keys[first:] whose bits are set in any group: the bits of groups are bitmaps
// of keys. A block counts as the slowest level's that any group needs of it.
func (p *Price) TiersOf(have *Presence, keys []connector.Key, first int, groups [][]byte) (out [connector.MaxTiers]connector.TierTokens) {
	if len(p.levels) == 0 || first >= len(keys) {
		return out
	}
	n := len(keys) - first
	p.slowest = slices.Grow(p.slowest[:0], n)[:n]
	for i := range p.slowest {
		p.slowest[i] = notOffered
	}
	for g, bits := range groups {
		p.locate(have.NS, &p.groups[g], keys[first:])
		for i, level := range p.where {
			if b := first + i; bits[b/8]&(1<<(b%8)) != 0 && (p.slowest[i] == notOffered || p.slowest[i] < level) {
				p.slowest[i] = level
			}
		}
	}
	for _, level := range p.slowest {
		if level != notOffered {
			out[min(int(level), connector.MaxTiers-1)].Tokens += p.blockSize
		}
	}
	p.name(&out)
	return out
}

// notOffered is no level.
const notOffered = 0xff

// name sets the names of the levels.
func (p *Price) name(out *[connector.MaxTiers]connector.TierTokens) {
	for i := range min(len(p.levels), connector.MaxTiers) {
		out[i].Tier = p.levels[i].Name()
	}
}
