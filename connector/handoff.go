package connector

import (
	"encoding/binary"
	"fmt"
)

// HandoffOffer says where the verified bytes of an offer lie in the daemon's host tier, for
// engines that copy them themselves (handoff mode): once they have it they need no daemon.
type HandoffOffer struct {
	// First is the first offered block, an index of the block table.
	First int
	// Shards list the blocks from First on: the same number for each shard that the ranks need.
	Shards []HandoffShard
}

// HandoffShard lists where the blocks lie for the ranks that keep one shard.
type HandoffShard struct {
	Shard  Shard
	Blocks []HandoffBlock
}

// HandoffBlock is where the verified bytes of one block lie.
type HandoffBlock struct {
	// Offset is in the descriptor that came with the answer to register.
	Offset uint64
	// Sum is the XXH3-64 of the bytes. The engine checks its copy against it.
	Sum uint64
}

// HandoffBlockBytes is what a block takes in an encoded offer.
const HandoffBlockBytes = 8 + 8

// Append appends the encoded offer to b: First as u32, then for each shard its number as
// u16, the number of blocks as u32, and offset and sum of each as u64, all little-endian.
func (o *HandoffOffer) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(o.First))
	for i := range o.Shards {
		s := &o.Shards[i]
		b = binary.LittleEndian.AppendUint16(b, uint16(s.Shard))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s.Blocks)))
		for _, blk := range s.Blocks {
			b = binary.LittleEndian.AppendUint64(b, blk.Offset)
			b = binary.LittleEndian.AppendUint64(b, blk.Sum)
		}
	}
	return b
}

// ParseHandoffOffer is the inverse of [HandoffOffer.Append]. Errors wrap [ErrPlan].
func ParseHandoffOffer(b []byte) (*HandoffOffer, error) {
	const shardHeader = 2 + 4
	if len(b) < 4 {
		return nil, fmt.Errorf("%w: handoff offer of %d bytes", ErrPlan, len(b))
	}
	o := &HandoffOffer{First: int(binary.LittleEndian.Uint32(b))}
	if o.First > MaxTokens {
		return nil, fmt.Errorf("%w: handoff offer from block %d on", ErrPlan, o.First)
	}
	for b = b[4:]; len(b) > 0; {
		if len(b) < shardHeader || len(o.Shards) == MaxShards {
			return nil, fmt.Errorf("%w: handoff offer ends early or has too many shards", ErrPlan)
		}
		n := uint64(binary.LittleEndian.Uint32(b[2:]))
		if n*HandoffBlockBytes > uint64(len(b)-shardHeader) {
			return nil, fmt.Errorf("%w: handoff offer of %d blocks in %d bytes", ErrPlan, n, len(b))
		}
		s := HandoffShard{Shard: Shard(binary.LittleEndian.Uint16(b)), Blocks: make([]HandoffBlock, n)}
		b = b[shardHeader:]
		for i := range s.Blocks {
			s.Blocks[i] = HandoffBlock{Offset: binary.LittleEndian.Uint64(b), Sum: binary.LittleEndian.Uint64(b[8:])}
			b = b[HandoffBlockBytes:]
		}
		o.Shards = append(o.Shards, s)
	}
	return o, nil
}
