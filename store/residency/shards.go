package residency

import "github.com/kvconn/kvconn/connector"

// Shards tells when all shards of a namespace's blocks are there that a prefix needs: only then a block
// can be loaded. Those are the shards of the layer groups with full attention; a sliding window's are
// needed near the end of a prefix only, and count if there is no other group. It remembers only the
// blocks of which some are missing.
type Shards struct {
	needed  [(connector.MaxShards + 63) / 64]uint64 // bitset
	count   int
	partial map[connector.Key]int // how many are there
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

// Stored notes a shard of a block, which comes once, and reports whether the block became complete.
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

// Removed notes that a shard is gone, and reports whether the block was complete.
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

// Incomplete is the number of blocks of which some shards are missing.
func (s *Shards) Incomplete() int { return len(s.partial) }
