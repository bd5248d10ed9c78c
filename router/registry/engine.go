package registry

import (
	"strconv"

	"github.com/kvconn/kvconn/router/blockkey"
)

// Engine is a kind of engine.
type Engine string

// The engines; "" is any but [SGLang].
const (
	VLLM        Engine = "vllm"
	SGLang      Engine = "sglang"
	TensorRTLLM Engine = "tensorrt-llm"
)

// Scheme is how the keys of the engine's blocks are made.
func (e Engine) Scheme() blockkey.Scheme {
	if e == SGLang {
		return blockkey.SGLang
	}
	return blockkey.Tokens
}

// RankHeader pins a request to a data-parallel rank: vLLM's and SGLang's name for it.
const RankHeader = "X-Data-Parallel-Rank"

// SGLang's other names for the rank: a header, which wins over [RankHeader] for chats and is the only one that /generate
// takes, and fields of the body. Headers win over the body.
const (
	OverrideHeader = "X-Override-Routed-Dp-Rank"
	RankField      = "routed_dp_rank"
	OldRankField   = "data_parallel_rank"
)

// AdapterField is SGLang's field for an adapter's name. A name after that of the model and a colon wins over it.
const AdapterField = "lora_path"

// DPMode is how a request names a rank among those that share its endpoint: vLLM has three ways to balance
// data-parallel ranks (SGLang's is internal).
type DPMode string

const (
	// External: each rank has a port of its own. No header is sent: such a server takes rank 0 only.
	External DPMode = "external"
	// Internal: all ranks share one port; the header has the global index.
	Internal DPMode = "internal"
	// Hybrid: the ranks of a node share one port; the header has the index on that node, which
	// is the global one less the node's first (--data-parallel-start-rank).
	Hybrid DPMode = "hybrid"
)

// HeaderValue is what [RankHeader] has to be for a request to reach the rank, "" if it must not be
// sent.
func (r *Rank) HeaderValue() string {
	switch r.DPMode {
	case Internal:
		return strconv.Itoa(r.DPRank)
	case Hybrid:
		return strconv.Itoa(r.DPRank - r.DPStartRank)
	default:
		return ""
	}
}
