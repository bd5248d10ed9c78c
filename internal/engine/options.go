package engine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// Order is the engine whose call order and rules are followed.
type Order int

const (
	// VLLM asks for a match in every step in which a request waits, tells an allocation
	// again when its load has ended, and computes what a failed load did not bring.
	VLLM Order = iota
	// TensorRTLLM asks once per allocation, tells nothing of a request between its
	// allocation and its first computed tokens, and dies of a failed load.
	TensorRTLLM
)

// Options configure an [Engine].
type Options struct {
	// Model is the model to serve.
	Model model.Config
	// BlockSize is the number of tokens in a block. Default 16.
	BlockSize int
	// Blocks is the size of the KV cache, whose slots all layer groups share; one block is
	// never used. Default: room for two sequences of the model's longest context.
	Blocks int
	// MaxBatchedTokens is the budget of one step; longer prompts are computed in chunks.
	// Default 256.
	MaxBatchedTokens int
	// MaxSeqs is the number of requests computed together. Default 8.
	MaxSeqs int
	// PrefixCaching lets requests share blocks of equal content.
	PrefixCaching bool
	// PartialReuse, with PrefixCaching, reuses all but the last token of a prompt whose
	// blocks are all known: the number of computed tokens is then no multiple of BlockSize.
	PartialReuse bool
	// DivergentHits, with PrefixCaching, uses the blocks that full-attention layers know
	// beyond the hit of the others when the connector offers to load those.
	DivergentHits bool

	// TensorParallel ranks share each layer's heads, PipelineParallel stages the layers.
	// Default 1.
	TensorParallel, PipelineParallel int
	// RankCommand, if set, runs each rank as a process of its own: a program and its
	// arguments, which calls [RunRank] with its standard input. Default: ranks are part
	// of this process.
	RankCommand []string
	// RankTimeout bounds each call to a rank that is a process. Default 30 s.
	RankTimeout time.Duration

	// NewMemory, if set, makes the file in which a rank of this process keeps its KV cache. Default: a memfd.
	NewMemory func(sizeBytes int64) (*os.File, error) `json:"-"`

	// Order is the call order. Default VLLM.
	Order Order
	// Overlap plans a step and tells the connector of it before the previous step is
	// computed and saved.
	Overlap bool
	// SyncLoads awaits every load in the step that plans it, before the forward pass, as
	// if each offer were one for a synchronous load. Without it, offers decide.
	SyncLoads bool
	// TensorRT are rules of the order TensorRTLLM that differ between its versions.
	TensorRT TensorRTOptions
}

// TensorRTOptions switch what TensorRT-LLM does in some versions or situations.
type TensorRTOptions struct {
	// AllocatePrompt allocates the blocks of the whole prompt at once (manager V1); else
	// allocations follow the chunks (V2).
	AllocatePrompt bool
	// DeviceComputed leaves the tokens of a synchronous load out of [connector.Scheduled]'s
	// Computed in the step that loads them, as the raw computed_position does.
	DeviceComputed bool
	// Honour, if set, says how many of the offered tokens the engine takes: at most that
	// many, even none. It is rounded down to whole blocks.
	Honour func(request string, offered int) int
	// Discard, if set, says whether the bytes of a load are thrown away once it has ended.
	Discard func(request string) bool
	// DropBatch, if set, says whether the batch of a step is dropped after its loads: what
	// was planned is neither computed nor saved, and its requests start over.
	DropBatch func(step int) bool
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.BlockSize = cmp.Or(o.BlockSize, 16)
	o.Blocks = cmp.Or(o.Blocks, 1+2*len(o.Model.Groups())*((o.Model.MaxContext+o.BlockSize-1)/o.BlockSize))
	o.MaxBatchedTokens = cmp.Or(o.MaxBatchedTokens, 256)
	o.MaxSeqs = cmp.Or(o.MaxSeqs, 8)
	o.TensorParallel = cmp.Or(o.TensorParallel, 1)
	o.PipelineParallel = cmp.Or(o.PipelineParallel, 1)
	o.RankTimeout = cmp.Or(o.RankTimeout, 30*time.Second)
}

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	if err := o.Model.Validate(); err != nil {
		return err
	}
	switch {
	case o.BlockSize < 1 || o.BlockSize > connector.MaxBlockSize:
		return fmt.Errorf("engine: block size %d: want 1 to %d", o.BlockSize, connector.MaxBlockSize)
	case o.Blocks < 2 || o.Blocks > 1<<24:
		return fmt.Errorf("engine: %d blocks: want 2 to %d", o.Blocks, 1<<24)
	case o.MaxBatchedTokens < 1:
		return fmt.Errorf("engine: budget of %d tokens a step: want at least 1", o.MaxBatchedTokens)
	case o.MaxSeqs < 1:
		return fmt.Errorf("engine: %d sequences: want at least 1", o.MaxSeqs)
	case (o.PartialReuse || o.DivergentHits) && !o.PrefixCaching:
		return errors.New("engine: PartialReuse and DivergentHits want PrefixCaching")
	case o.Order != VLLM && o.Order != TensorRTLLM:
		return fmt.Errorf("engine: order %d: want VLLM or TensorRTLLM", o.Order)
	case o.Overlap && o.TensorRT.DropBatch != nil:
		return errors.New("engine: DropBatch does not go with Overlap")
	case o.RankTimeout < 0:
		return errors.New("engine: negative rank timeout")
	}
	return o.validateRanks()
}

func (o *Options) validateRanks() error {
	c, tp := &o.Model, o.TensorParallel
	switch {
	case tp < 1 || o.PipelineParallel < 1 || o.PipelineParallel > c.Layers:
		return fmt.Errorf("engine: tensor parallel %d, pipeline parallel %d: want at least 1, at most the %d layers", tp, o.PipelineParallel, c.Layers)
	case c.KVHeads%tp != 0 && c.KVHeads != 1:
		return fmt.Errorf("engine: tensor parallel %d does not share %d kv heads evenly", tp, c.KVHeads)
	case c.Heads%tp != 0:
		return fmt.Errorf("engine: tensor parallel %d does not share %d heads evenly", tp, c.Heads)
	}
	return nil
}
