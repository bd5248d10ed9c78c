package engine

import (
	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// shard is what one rank keeps: some layers and some KV heads of every block. A block is a
// slot that all layer groups may use; it has room for the group with the most layers. The
// page of layer i of a group and block b is at i*layerStride + b*blockStride, in floats.
type shard struct {
	Model                            model.Config
	BlockSize, Blocks                int
	TensorParallel, PipelineParallel int
	Rank                             int
}

func (o *Options) shard(rank int) shard {
	return shard{
		Model: o.Model, BlockSize: o.BlockSize, Blocks: o.Blocks,
		TensorParallel: o.TensorParallel, PipelineParallel: o.PipelineParallel, Rank: rank,
	}
}

// replicated says that every tensor-parallel rank keeps the model's only KV head.
func (s *shard) replicated() bool { return s.Model.KVHeads < s.TensorParallel }

// heads is the number of KV heads of the rank.
func (s *shard) heads() int { return max(1, s.Model.KVHeads/s.TensorParallel) }

// blockStride is also the size of a page.
func (s *shard) blockStride() int { return s.heads() * s.Model.PlaneFloats(s.BlockSize) }
func (s *shard) layerStride() int { return s.Blocks * s.blockStride() }

// layers are those of a group that are in the rank's pipeline stage.
func (s *shard) layers(g *model.Group) []int {
	var own []int
	stage := s.Rank / s.TensorParallel
	for _, layer := range g.Layers {
		if layer*s.PipelineParallel/s.Model.Layers == stage {
			own = append(own, layer)
		}
	}
	return own
}

// slotLayers is the number of pages of a slot.
func (s *shard) slotLayers() int {
	n := 0
	for _, g := range s.Model.Groups() {
		n = max(n, len(s.layers(&g)))
	}
	return n
}

// layout declares the memory to the connector.
func (s *shard) layout() connector.Layout {
	var l connector.Layout
	for _, g := range s.Model.Groups() {
		var declared connector.GroupLayout
		if n := len(s.layers(&g)); n > 0 {
			declared = connector.GroupLayout{Blocks: uint32(s.Blocks), Runs: []connector.Run{{
				Layers:      uint32(n),
				LayerStride: uint64(4 * s.layerStride()),
				BlockStride: uint64(4 * s.blockStride()),
				Bytes:       uint64(4 * s.blockStride()),
			}}}
		}
		l.Groups = append(l.Groups, declared)
	}
	return l
}

// groups declares the layer groups to the connector.
func (o *Options) groups() []connector.Group {
	first := o.shard(0)
	var groups []connector.Group
	for _, g := range o.Model.Groups() {
		declared := connector.Group{
			Layers: len(g.Layers), Window: g.Window, KVHeads: first.heads(), HeadSize: 2 * o.Model.HeadDim,
			Layout: "LBHNC", Replicated: first.replicated(),
		}
		for stage := range o.PipelineParallel {
			if s := o.shard(stage * o.TensorParallel); len(s.layers(&g)) > 0 {
				declared.Stages = append(declared.Stages, stage)
			}
		}
		if len(declared.Stages) == o.PipelineParallel {
			declared.Stages = nil
		}
		groups = append(groups, declared)
	}
	return groups
}
