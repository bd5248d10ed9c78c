package residency

import "github.com/kvconn/kvconn/connector"

// Shards knows which blocks of a namespace are complete, that is, have all shards that a prefix needs: only
// then can a block be loaded. These are the shards of the layer groups with full attention. The shards of a
// sliding window are needed near the end of a prefix only, and count if there is no other group. Shards
// remembers incomplete blocks only. It is for one goroutine.
type Shards struct {
	needed  [(connector.MaxShards + 63) / 64]uint64 // bitset
	count   int
	partial map[connector.Key]int // shards that are there, of incomplete blocks
}

// NewShards makes one for a namespace that is empty.
func NewShards(m *connector.Manifest) *Shards {
	s := &Shards{partial: make(map[connector.Key]int)}
	full := false
	for i := range m.Groups {
		full = full || m.Groups[i].Window == 0
	}
	for i := range m.Groups {
		if full && m.Groups[i].Window > 0 {
			continue
		}
		for _, shard := range m.GroupShards(i) {
			if !s.needs(shard) {
				s.needed[shard/64] |= 1 << (shard % 64)
				s.count++
			}
		}
	}
	return s
}

func (s *Shards) needs(shard connector.Shard) bool {
	return int(shard) < connector.MaxShards && s.needed[shard/64]&(1<<(shard%64)) != 0
}

// Stored notes a shard of a block, once for each, and reports whether it completed the block.
func (s *Shards) Stored(key connector.Key, shard connector.Shard) (complete bool) {
	if !s.needs(shard) {
		return false
	}
	n := s.partial[key] + 1
	if n < s.count {
		s.partial[key] = n
		return false
	}
	if s.count > 1 {
		delete(s.partial, key)
	}
	return true
}

// Removed notes that a shard is gone, and reports whether the block was complete until then.
func (s *Shards) Removed(key connector.Key, shard connector.Shard) (was bool) {
	switch n, known := s.partial[key]; {
	case !s.needs(shard):
		return false
	case s.count == 1:
		return true
	case !known:
		s.partial[key] = s.count - 1
		return true
	case n <= 1:
		delete(s.partial, key)
	default:
		s.partial[key] = n - 1
	}
	return false
}

// Incomplete is the number of blocks that have some of their shards.
func (s *Shards) Incomplete() int { return len(s.partial) }
