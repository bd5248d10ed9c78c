package connector

import (
	"errors"
	"fmt"
	"math/bits"
)

// MaxBlockBytes bounds one shard of one token block (0.25 to 8 MiB are typical).
const MaxBlockBytes = 64 << 20

// MaxRuns bounds the runs of a layout and MaxRegions its descriptors.
const (
	MaxRuns    = 4096
	MaxRegions = 16
)

// MaxPieces bounds the pieces of one block: what one block's copy has to list.
const MaxPieces = 1 << 16

// ErrLayout marks a layout that does not fit itself or the memory it describes.
var ErrLayout = errors.New("bad layout")

// Run is a stretch of equally shaped pieces of a block: for each layer l below Layers
// the Bytes at Offset + l*LayerStride + block*BlockStride of the region belong to the
// block. All numbers are bytes except Layers.
type Run struct {
	Region      uint32
	Offset      uint64
	Layers      uint32
	LayerStride uint64
	BlockStride uint64
	Bytes       uint64
}

// Layout says how the blocks of one rank lie in the engine's memory: one entry for each
// layer group of the manifest, without runs where the rank has no layers of the group.
type Layout struct {
	Groups []GroupLayout
}

// GroupLayout says how one block of one layer group lies in memory. A block's payload is
// its runs in order, within a run its layers in order.
type GroupLayout struct {
	// Blocks is the number of slots for blocks; block ids are below it. Groups may share
	// slots.
	Blocks uint32
	Runs   []Run
}

// BlockBytes is the payload size of one block, 0 where the rank keeps nothing of it.
func (l *GroupLayout) BlockBytes() int {
	var n uint64
	for _, r := range l.Runs {
		n += uint64(r.Layers) * r.Bytes
	}
	return int(n)
}

// Validate reports whether every byte of every block lies inside its region, given the
// size of each region. All arithmetic is checked for overflow: the layout comes from
// another process. Errors wrap [ErrLayout].
func (l *Layout) Validate(regionSizes []int64) error {
	if len(l.Groups) == 0 || len(l.Groups) > MaxGroups {
		return fmt.Errorf("%w: %d groups, want 1 to %d", ErrLayout, len(l.Groups), MaxGroups)
	}
	empty := true
	for i := range l.Groups {
		g := &l.Groups[i]
		if len(g.Runs) == 0 && g.Blocks == 0 {
			continue
		}
		empty = false
		if err := g.validate(regionSizes); err != nil {
			return fmt.Errorf("group %d: %w", i, err)
		}
	}
	if empty {
		return fmt.Errorf("%w: no group has runs", ErrLayout)
	}
	return nil
}

func (l *GroupLayout) validate(regionSizes []int64) error {
	if l.Blocks == 0 {
		return fmt.Errorf("%w: no blocks", ErrLayout)
	}
	if len(l.Runs) == 0 || len(l.Runs) > MaxRuns {
		return fmt.Errorf("%w: %d runs, want 1 to %d", ErrLayout, len(l.Runs), MaxRuns)
	}
	var total, pieces uint64
	for i := range l.Runs {
		r := &l.Runs[i]
		if pieces += uint64(r.Layers); pieces > MaxPieces {
			return fmt.Errorf("%w: a block has more than %d pieces", ErrLayout, MaxPieces)
		}
		if int(r.Region) >= len(regionSizes) {
			return fmt.Errorf("%w: run %d names region %d, %d descriptors came with it", ErrLayout, i, r.Region, len(regionSizes))
		}
		end, err := r.end(l.Blocks)
		if err != nil {
			return fmt.Errorf("%w: run %d: %w", ErrLayout, i, err)
		}
		if size := uint64(regionSizes[r.Region]); end > size {
			return fmt.Errorf("%w: run %d ends at byte %d of region %d, whose descriptor has %d", ErrLayout, i, end, r.Region, size)
		}
		total += uint64(r.Layers) * r.Bytes
		if total > MaxBlockBytes {
			return fmt.Errorf("%w: a block has more than %d bytes", ErrLayout, MaxBlockBytes)
		}
	}
	return nil
}

// end is the first byte after the last piece of the last block.
func (r *Run) end(blocks uint32) (uint64, error) {
	if r.Layers == 0 || r.Layers > maxLayers || r.Bytes == 0 || r.Bytes > MaxBlockBytes {
		return 0, fmt.Errorf("%d layers of %d bytes: want 1 to %d layers of 1 to %d bytes", r.Layers, r.Bytes, maxLayers, MaxBlockBytes)
	}
	if blocks > 1 && r.BlockStride < r.Bytes {
		return 0, fmt.Errorf("block stride %d is less than the %d bytes of a piece", r.BlockStride, r.Bytes)
	}
	if r.Layers > 1 && r.LayerStride < r.Bytes {
		return 0, fmt.Errorf("layer stride %d is less than the %d bytes of a piece", r.LayerStride, r.Bytes)
	}
	end := r.Offset
	for _, term := range [...][2]uint64{
		{uint64(r.Layers - 1), r.LayerStride}, {uint64(blocks - 1), r.BlockStride}, {1, r.Bytes},
	} {
		hi, lo := bits.Mul64(term[0], term[1])
		sum, carry := bits.Add64(end, lo, 0)
		if hi != 0 || carry != 0 {
			return 0, errors.New("address overflows 64 bits")
		}
		end = sum
	}
	return end, nil
}
