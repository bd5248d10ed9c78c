package connector

import (
	"encoding/binary"
	"fmt"
)

// HandoffOffer says where the verified bytes of an offer lie in the daemon's staging memory,
// for engines that copy them themselves: they need nobody once they have it.
type HandoffOffer struct {
	// First is the first block that is staged, an index of the block table.
	First int
	// Shards list the blocks from First on, as many for each shard that the ranks need.
	Shards []HandoffShard
}

// Append appends the encoded offer to b: First as u32, then for each shard its number as
// u16, the number of blocks as u32, and offset and sum of each as u64, all little-endian.
func (o *HandoffOffer) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(o.First))
	for i := range o.Shards {
		s := &o.Shards[i]
		b = binary.LittleEndian.AppendUint16(b, uint16(s.Shard))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s.Blocks)))
		b = s.appendBlocks(b)
	}
	return b
}

// ParseHandoffOffer is the inverse of [HandoffOffer.Append]. Errors wrap [ErrPlan].
func ParseHandoffOffer(b []byte) (*HandoffOffer, error) {
	const shardHeader = 2 + 4
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: staged offer of %d bytes", ErrPlan, len(b))
	}
	o := &HandoffOffer{First: int(binary.LittleEndian.Uint32(b))}
	if o.First > MaxTokens {
		return nil, fmt.Errorf("%w: staged offer from block %d on", ErrPlan, o.First)
	}
	for b = b[4:]; len(b) > 0; {
		if len(b) < shardHeader || len(o.Shards) == MaxShards {
			return nil, fmt.Errorf("%w: staged offer ends early or has too many shards", ErrPlan)
		}
		n := uint64(binary.LittleEndian.Uint32(b[2:]))
		if n*HandoffBlockBytes > uint64(len(b)-shardHeader) {
			return nil, fmt.Errorf("%w: staged offer of %d blocks in %d bytes", ErrPlan, n, len(b))
		}
		r := planReader{b: b[shardHeader:]}
		s := HandoffShard{Shard: Shard(binary.LittleEndian.Uint16(b)), Blocks: make([]HandoffBlock, n)}
		for i := range s.Blocks {
			s.Blocks[i] = stagedBlock(r.take(HandoffBlockBytes))
		}
		o.Shards = append(o.Shards, s)
		b = r.b
	}
	return o, nil
}

// Load is the load of what the engine has taken of the offer. Blocks outside of it have no
// place: their transfer has no staged shards, and fails.
func (o *HandoffOffer) Load(a *Alloc, m *Manifest) RequestLoad {
	l := RequestLoad{Request: a.Request}
	for g := range min(len(a.Blocks), len(m.Groups)) {
		begin, end := a.LoadRange(&m.Groups[g], g, m.BlockSize)
		table := a.Blocks[g]
		for i := begin; i < min(end, len(table)); {
			if table[i] == NoBlock {
				i++
				continue
			}
			from := i
			t := Transfer{Group: g}
			for ; i < min(end, len(table)) && table[i] != NoBlock; i++ {
				t.Blocks = append(t.Blocks, PlanBlock{Slot: table[i]})
			}
			t.Handoff = o.of(m.GroupShards(g), from, i)
			l.Transfers = append(l.Transfers, t)
		}
	}
	return l
}

// of returns where the blocks [first, end) lie for those shards, nil if one is missing.
func (o *HandoffOffer) of(shards []Shard, first, end int) []HandoffShard {
	if o == nil || first < o.First {
		return nil
	}
	var out []HandoffShard
	for _, shard := range shards {
		for i := range o.Shards {
			if s := &o.Shards[i]; s.Shard == shard && end-o.First <= len(s.Blocks) {
				out = append(out, HandoffShard{Shard: shard, Blocks: s.Blocks[first-o.First : end-o.First]})
			}
		}
	}
	if len(out) != len(shards) {
		return nil
	}
	return out
}
