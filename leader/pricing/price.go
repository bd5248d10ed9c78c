package pricing

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// Price finds how much of a hit is worth loading. The model:
//
//   - prefill of n tokens takes n / prefill speed; that attention grows with the prefix is left
//     out, which errs towards recomputing the ends of long prompts;
//   - a block comes from the first level that has it. A level that all ranks share delivers the
//     bytes of all its shards, a level that each rank reads by itself those of the largest. Only
//     shards that ranks on this node load count, once [Price.SetHere] has told them;
//   - a level that delivers anything costs its start once: its latency, and the bytes that loads
//     asked of it before. What is read before its load counts nothing: it may be this very load's,
//     which joins those reads. A level that was not measured yet is free;
//   - a group's other shards are taken to be where its first one here is, as ranks load and evict alike;
//     ranks on other nodes are taken to be no slower than those here.
//
// The best boundary is where prefill time saved less load time is largest.
type Price struct {
	blockSize int
	levels    []store.Level
	groups    []groupPrice
	sized     bool
	// Refusing is set by the user while the last decision left something out. Loads must then be
	// faster than prefill by a margin before they are offered again, so that noise does not flip
	// decisions.
	Refusing bool
	// Speeds are what the last decision was made with, by level, and startS what each level's start
	// takes in seconds, with the margin in force.
	Speeds []store.Speed
	startS []float64

	// first is the hit's first block, blockS the prefill time of a block in seconds.
	first  int
	blockS float64
	// Work space: where each block is, as an index of levels.
	where []uint8
	at    []bool
	// slowest is the slowest level that an offer needs of each block.
	slowest []uint8
}

// groupPrice is what the blocks of a layer group cost.
type groupPrice struct {
	*Group
	// here are the shards that ranks on this node load.
	here []connector.Shard
	// whole says that a load has all blocks of the group, even where it has a window.
	whole bool
	// all and largest are the bytes of a block: of all shards that are loaded here, and of the largest.
	all, largest float64
	// blockS is what a block takes in seconds from each level, with the margin in force.
	blockS []float64
	// seconds is the load time of the blocks before each boundary, and from[i] how many of them
	// come from level i, if its start takes any time.
	seconds []float64
	from    [][]int
}

// ReacceptRatio is the share of the prefill time that a load may take to be offered after one was
// refused; without a refusal it is 1.
const ReacceptRatio = 0.8

// Init makes p the price of loads of groups from levels, the fastest first. whole says that a load has
// all blocks of a group, even where it has a window.
func (p *Price) Init(levels []store.Level, blockSize int, groups []Group, whole bool) {
	n := len(levels)
	*p = Price{
		blockSize: blockSize, levels: levels, groups: make([]groupPrice, len(groups)),
		Speeds: make([]store.Speed, n), startS: make([]float64, n),
	}
	for g := range groups {
		p.groups[g] = groupPrice{Group: &groups[g], here: groups[g].Shards, whole: whole, blockS: make([]float64, n), from: make([][]int, n)}
	}
}

// SetHere tells which shards ranks on this node load. None stands for all: nothing is known of the ranks.
func (p *Price) SetHere(shards []connector.Shard) {
	p.sized = false
	for i := range p.groups {
		g := &p.groups[i]
		if g.here = g.Shards; len(shards) > 0 {
			g.here = slices.DeleteFunc(slices.Clone(g.Shards), func(s connector.Shard) bool { return !slices.Contains(shards, s) })
		}
	}
}

// Best returns the boundary up to which loading the blocks keys[first:boundary] saves most time:
// boundary itself, or less, or first. blockS is the prefill time of a block in seconds.
func (p *Price) Best(have *Presence, keys []connector.Key, first, boundary int, blockS float64) int {
	p.first, p.blockS = first, blockS
	p.size(have)
	worstS, startS := p.quote()
	if n := float64(boundary - first); worstS <= blockS && n*(blockS-worstS) > startS {
		return boundary // worth it even if all of it comes from the slowest level
	}
	for g := range p.groups {
		p.locate(have.NS, &p.groups[g], keys[first:boundary])
		p.groups[g].sum(p.where, p.startS)
	}
	best, saved := first, 0.0
	for b := first + 1; b <= boundary; b++ {
		if v := p.Saved(b); v > 0 && v >= saved {
			best, saved = b, v
		}
	}
	return best
}

// size learns the sizes of blocks, until all are known.
func (p *Price) size(have *Presence) {
	if p.sized {
		return
	}
	p.sized = true
	for i := range p.groups {
		g := &p.groups[i]
		g.all, g.largest = 0, 0
		for _, shard := range g.here {
			n := have.Index.PayloadBytes(have.NS, shard)
			p.sized = p.sized && n > 0
			g.all += float64(n)
			g.largest = max(g.largest, float64(n))
		}
	}
}

// quote asks the levels for their speeds. It returns the time in seconds of one block of all
// groups from the slowest level, and that of all levels' starts.
func (p *Price) quote() (worstS, startS float64) {
	margin := 1.0
	if p.Refusing {
		margin = 1 / ReacceptRatio
	}
	for i, level := range p.levels {
		s := level.Speed()
		s.QueuedBytes -= s.AheadBytes
		byteS, start := 0.0, 0.0
		if s.BytesPerS > 0 {
			byteS = margin / s.BytesPerS
			start = margin*s.LatencyS + byteS*float64(s.QueuedBytes)
		}
		p.Speeds[i], p.startS[i] = s, start
		startS += start
		for j := range p.groups {
			g := &p.groups[j]
			if g.blockS[i] = g.all * byteS; s.PerRank {
				g.blockS[i] = g.largest * byteS
			}
		}
	}
	for i := range p.groups {
		worstS += slices.Max(p.groups[i].blockS)
	}
	return worstS, startS
}

// locate finds the first level that has each of a group's blocks. What none of the others has is taken
// to be in the last. The first shard that is loaded here stands for all, since ranks load and evict
// alike. Where none is, other nodes load the blocks, and they are taken to be in the first level.
func (p *Price) locate(ns connector.NamespaceDigest, g *groupPrice, keys []connector.Key) {
	n, last := len(keys), len(p.levels)-1
	p.where, p.at = slices.Grow(p.where[:0], n)[:n], slices.Grow(p.at[:0], n)[:n]
	if len(g.here) == 0 {
		clear(p.where)
		return
	}
	for i := range p.where {
		p.where[i] = uint8(last)
	}
	for level := last - 1; level >= 0; level-- {
		clear(p.at)
		p.levels[level].Present(ns, g.here[0], keys, p.at)
		for i, present := range p.at {
			if present {
				p.where[i] = uint8(level)
			}
		}
	}
}

// sum adds up the blocks that are where.
func (g *groupPrice) sum(where []uint8, startS []float64) {
	t := 0.0
	g.seconds = append(g.seconds[:0], 0)
	for _, level := range where {
		t += g.blockS[level]
		g.seconds = append(g.seconds, t)
	}
	for i := range startS {
		if startS[i] == 0 {
			continue
		}
		n := 0
		g.from[i] = append(g.from[i][:0], 0)
		for _, level := range where {
			if int(level) == i {
				n++
			}
			g.from[i] = append(g.from[i], n)
		}
	}
}

// Saved is the time in seconds that a load up to a boundary of the last hit saves.
func (p *Price) Saved(boundary int) float64 {
	end := boundary - p.first
	v := float64(end) * p.blockS
	for i := range p.groups {
		g := &p.groups[i]
		v -= g.seconds[end] - g.seconds[g.begin(p, boundary)]
	}
	for level, startS := range p.startS {
		if startS > 0 && p.delivers(level, boundary) {
			v -= startS
		}
	}
	return v
}

// delivers reports whether a load up to a boundary has blocks of a level.
func (p *Price) delivers(level, boundary int) bool {
	for i := range p.groups {
		g := &p.groups[i]
		if from := g.from[level]; from[boundary-p.first] > from[g.begin(p, boundary)] {
			return true
		}
	}
	return false
}

// begin is the first of the group's blocks that a load up to a boundary needs, counted from the
// hit's first.
func (g *groupPrice) begin(p *Price, boundary int) int {
	if g.whole {
		return 0
	}
	return max(0, g.FirstBlock(boundary*p.blockSize, p.blockSize)-p.first)
}
