package explain

import (
	"slices"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// count is what the levels have of a prompt.
type count struct {
	stored, later int
	tiers         []Tier
	loadS         float64
}

// shardsOf are the shards of the blocks that a hit needs in full. Layers that look back over a window need only the last
// few blocks: where there are others, those say what is stored.
func shardsOf(m *connector.Manifest) (shards []connector.Shard) {
	full := slices.ContainsFunc(m.Groups, func(g connector.Group) bool { return g.Window == 0 })
	for g := range m.Groups {
		if !full || m.Groups[g].Window == 0 {
			shards = append(shards, m.GroupShards(g)...)
		}
	}
	return shards
}

// count looks where each block is: on the fastest level that has all of its shards.
func (s *Source) count(m *connector.Manifest, keys []connector.Key) (c count) {
	ns, shards := m.Digest(), shardsOf(m)
	c.tiers = []Tier{}
	whole, largest := int64(0), int64(0)
	for _, shard := range shards {
		n := int64(s.PayloadBytes(ns, shard))
		whole, largest = whole+n, max(largest, n)
	}
	on := s.levelOf(ns, shards, keys)
	c.stored = slices.Index(on, -1)
	if c.stored < 0 {
		c.stored = len(on)
	}
	for _, l := range on[c.stored:] {
		if l >= 0 {
			c.later++
		}
	}
	known := true
	for l, level := range s.Levels {
		t := Tier{Tier: level.Name()}
		for _, at := range on[:c.stored] {
			if at == l {
				t.Blocks++
			}
		}
		if t.Blocks == 0 {
			continue
		}
		t.Bytes = int64(t.Blocks) * whole
		c.tiers = append(c.tiers, t)
		v := level.Speed()
		known = known && v.BytesPerS > 0
		c.loadS += seconds(v, int64(t.Blocks), whole, largest)
	}
	if !known {
		c.loadS = 0
	}
	return c
}

// seconds is how long a level takes for some blocks, after what it has to do already.
func seconds(v store.Speed, blocks, whole, largest int64) float64 {
	if v.BytesPerS <= 0 {
		return 0
	}
	if v.PerRank { // each rank reads its own shards
		whole = largest
	}
	return v.LatencyS + (float64(blocks*whole)+float64(v.QueuedBytes-v.AheadBytes))/v.BytesPerS
}

// levelOf is the first level that has all shards of each block, -1 if none has.
func (s *Source) levelOf(ns connector.NamespaceDigest, shards []connector.Shard, keys []connector.Key) []int {
	on := make([]int, len(keys))
	for i := range on {
		on[i] = -1
	}
	// A load reads each shard from the fastest level that has it: a block is where its slowest shard is.
	for k, shard := range shards {
		level := make([]int, len(keys))
		for i := range level {
			level[i] = -1
		}
		for l := len(s.Levels) - 1; l >= 0; l-- {
			at := make([]bool, len(keys))
			s.Levels[l].Present(ns, shard, keys, at)
			for i, there := range at {
				if there {
					level[i] = l
				}
			}
		}
		for i := range on {
			switch {
			case k == 0:
				on[i] = level[i]
			case on[i] < 0 || level[i] < 0:
				on[i] = -1
			default:
				on[i] = max(on[i], level[i])
			}
		}
	}
	return on
}
