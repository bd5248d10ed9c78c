package worker

import (
	"sort"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
)

// stretch is a run of consecutive blocks of one prompt and layer group, from or to the engine's
// memory.
type stretch struct {
	group  *groupMemory
	parent connector.Key // of the first block
	blocks []connector.PlanBlock
	// first is the number of blocks before the stretch in its load.
	first int
}

// record is what block i of the stretch is stored as.
func (s *stretch) record(ns connector.NamespaceDigest, i int) store.Record {
	parent := s.parent
	if i > 0 {
		parent = s.blocks[i-1].Key
	}
	b := &s.blocks[i]
	return store.Record{ID: store.RecordID{Namespace: ns, Shard: s.group.shard, Key: b.Key}, Parent: parent, Proof: b.Proof}
}

// planned lists the stretches of this rank's shards.
func planned(mem *memory, transfers []connector.Transfer) []stretch {
	stretches := make([]stretch, 0, len(transfers))
	for i := range transfers {
		t := &transfers[i]
		if g := mem.group(t.Group); g != nil {
			stretches = append(stretches, stretch{group: g, parent: t.Parent, blocks: t.Blocks})
		}
	}
	return stretches
}

// keyedStretch is that of blocks by the engine's own keys.
func keyedStretch(g *groupMemory, k *connector.KeyedBlocks) stretch {
	s := stretch{group: g, parent: connector.EngineKey(k.Parent), blocks: make([]connector.PlanBlock, len(k.Hashes))}
	for i := range s.blocks {
		s.blocks[i] = connector.PlanBlock{Slot: k.Slots[i], Key: connector.EngineKey(k.Hashes[i]), Proof: k.Hashes[i]}
	}
	return s
}

// part is blocks [from, to) of the stretch.
func (s *stretch) part(from, to int) stretch {
	p := *s
	if from > 0 {
		p.parent = s.blocks[from-1].Key
	}
	p.blocks = s.blocks[from:to]
	return p
}

// find returns the stretch and the place in it of block i of a load.
func find(stretches []stretch, i int) (*stretch, int) {
	after := sort.Search(len(stretches), func(n int) bool { return stretches[n].first > i })
	s := &stretches[after-1]
	return s, i - s.first
}
