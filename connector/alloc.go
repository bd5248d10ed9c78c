package connector

import (
	"iter"
	"math"
)

// NoBlock stands in a block table where the engine keeps no block, because it is outside
// the layer group's window (TensorRT-LLM's BAD_PAGE_INDEX, vLLM's null block).
const NoBlock = math.MaxUint32

// Alloc tells that the engine has allocated blocks for a request whose offer it took.
type Alloc struct {
	Request string
	// Blocks is the request's whole block table, one list for each layer group.
	Blocks [][]uint32
	// Computed is the engine's own prefix hit. External are the tokens to load after it:
	// at most what was offered, and nothing if the engine does not want the offer.
	Computed, External int
	// GroupComputed is the engine's own prefix hit of each layer group where they differ;
	// nil means Computed for all. None is beyond Computed + External.
	GroupComputed []int
}

// Boundary is the number of tokens that are there once the load has ended.
func (a *Alloc) Boundary() int { return a.Computed + a.External }

// LoadRange is the half-open range of a group's block table that the load is to fill: from
// where the group's own hit ends, or the first block begins that its window reaches into,
// to the boundary, whole blocks. Where the group has all that it needs, first is end.
func (a *Alloc) LoadRange(g *Group, group, blockSize int) (first, end int) {
	computed := a.Computed
	if group < len(a.GroupComputed) {
		computed = a.GroupComputed[group]
	}
	boundary := a.Boundary()
	end = (boundary + blockSize - 1) / blockSize
	start := max(computed, g.FirstBlock(boundary, blockSize)*blockSize)
	if start >= boundary {
		return end, end
	}
	return start / blockSize, end
}

// Stretch is a run of consecutive blocks of one layer group's table.
type Stretch struct {
	Group int
	// First is the index of Slots[0] in the table.
	First int
	// Slots are the engine's block ids, none of them [NoBlock]: a view of the table.
	Slots []uint32
}

// Stretches yields what the load is to fill, group by group and in the order of the tables:
// the blocks of [Alloc.LoadRange] without those that the engine does not keep.
func (a *Alloc) Stretches(m *Manifest) iter.Seq[Stretch] {
	return func(yield func(Stretch) bool) {
		for g := range min(len(a.Blocks), len(m.Groups)) {
			table := a.Blocks[g]
			first, end := a.LoadRange(&m.Groups[g], g, m.BlockSize)
			for end = min(end, len(table)); first < end; first++ {
				from := first
				for first < end && table[first] != NoBlock {
					first++
				}
				if from < first && !yield(Stretch{Group: g, First: from, Slots: table[from:first:first]}) {
					return
				}
			}
		}
	}
}

// PlannedLoad lists what the load is to fill.
func (a *Alloc) PlannedLoad(m *Manifest) PlannedLoad {
	l := PlannedLoad{Request: a.Request}
	for s := range a.Stretches(m) {
		l.Blocks = append(l.Blocks, s.Slots...)
	}
	return l
}
