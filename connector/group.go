package connector

import (
	"errors"
	"fmt"
	"slices"
)

// Group is a layer group: attention layers that keep the same tokens in the same form.
type Group struct {
	// Layers is the number of layers of the whole model that are in the group.
	Layers int `json:"layers"`
	// Window is the number of tokens that a layer looks back on, its own included; 0 means
	// all of them (full attention).
	Window int `json:"window,omitempty"`
	// KVHeads is the number of KV heads a rank holds, HeadSize the elements of K and V
	// together that one head keeps for one token.
	KVHeads  int `json:"kv_heads"`
	HeadSize int `json:"head_size"`
	// Layout names the order of dimensions of a block, for example "LBHNC".
	Layout string `json:"layout"`
	// Replicated is set where all tensor-parallel ranks hold the same bytes (MLA): they
	// are stored once, by the first rank of each pipeline stage.
	Replicated bool `json:"replicated,omitempty"`
	// Stages are the pipeline stages that have layers of the group, in ascending order;
	// empty means all.
	Stages []int `json:"stages,omitempty"`
}

func (g *Group) validate(stages int) error {
	switch {
	case g.Layers < 1 || g.Layers > maxLayers:
		return fmt.Errorf("layers %d: want 1 to %d", g.Layers, maxLayers)
	case g.Window < 0 || g.Window > MaxTokens:
		return fmt.Errorf("window %d: want 0 to %d tokens", g.Window, MaxTokens)
	case g.KVHeads < 0 || g.HeadSize < 0:
		return errors.New("kv_heads or head_size is negative")
	}
	for i, s := range g.Stages {
		if s < 0 || s >= stages || (i > 0 && s <= g.Stages[i-1]) {
			return fmt.Errorf("stages %v: want ascending numbers below pipeline_parallel %d", g.Stages, stages)
		}
	}
	return nil
}

// FirstBlock is the first block that the group's layers need to go on after boundary
// tokens: block 0 with full attention, else the block of the first token that the token
// at the boundary still looks back on (TensorRT-LLM's stale end).
func (g *Group) FirstBlock(boundary, blockSize int) int {
	if g.Window == 0 {
		return 0
	}
	return max(0, boundary+1-g.Window) / blockSize
}

// Ranks is the number of engine worker processes that hold parts of a block. Rank r is
// tensor-parallel rank r % TensorParallel of stage r / TensorParallel.
func (m *Manifest) Ranks() int { return m.TensorParallel * m.PipelineParallel }

// Shard is the number of the part of a block that a rank keeps for a layer group. It
// reports false where the rank's stage has no layers of the group. Ranks that keep the
// same bytes have the same shard.
func (m *Manifest) Shard(rank, group int) (Shard, bool) {
	g := &m.Groups[group]
	stage, part := rank/m.TensorParallel, rank%m.TensorParallel
	if len(g.Stages) > 0 && !slices.Contains(g.Stages, stage) {
		return 0, false
	}
	if g.Replicated {
		part = 0
	}
	return Shard((stage*m.TensorParallel+part)*len(m.Groups) + group), true
}

// Writes reports whether it is this rank that stores its shard of a group.
func (m *Manifest) Writes(rank, group int) bool {
	return !m.Groups[group].Replicated || rank%m.TensorParallel == 0
}

// GroupShards lists the shards of one block of a group. A hit needs all of them.
func (m *Manifest) GroupShards(group int) []Shard {
	var shards []Shard
	for rank := range m.Ranks() {
		if s, ok := m.Shard(rank, group); ok && !slices.Contains(shards, s) {
			shards = append(shards, s)
		}
	}
	return shards
}
