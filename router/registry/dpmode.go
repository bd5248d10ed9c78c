package registry

import (
	"fmt"
	"strconv"
)

// DPMode is how a request names a rank among those that share its endpoint: vLLM has three ways to balance
// data-parallel ranks (SGLang's is internal).
type DPMode string

const (
	// External: each rank has a port of its own. No header is sent: such a server takes rank 0 only.
	External DPMode = "external"
	// Internal: all ranks are behind one port; the header has the global index.
	Internal DPMode = "internal"
	// Hybrid: the ranks of a node are behind one port; the header has the index on that node, which
	// is the global one less the node's first (--data-parallel-start-rank).
	Hybrid DPMode = "hybrid"
)

// RankHeader pins a request to a data-parallel rank: vLLM's and SGLang's name for it.
const RankHeader = "X-Data-Parallel-Rank"

// maxDPRank bounds the index of a data-parallel rank: ports end there.
const maxDPRank = 65535

func (r *Rank) validateDP() error {
	if r.DPRank < 0 || r.DPRank > maxDPRank || r.DPStartRank < 0 {
		return fmt.Errorf("dp_rank %d, dp_start_rank %d: 0 to %d", r.DPRank, r.DPStartRank, maxDPRank)
	}
	switch r.DPMode {
	case External, Internal:
		if r.DPStartRank != 0 {
			return fmt.Errorf("dp_start_rank is for dp_mode hybrid, this is %s", r.DPMode)
		}
	case Hybrid:
		if r.DPRank < r.DPStartRank {
			return fmt.Errorf("dp_rank %d is below dp_start_rank %d", r.DPRank, r.DPStartRank)
		}
	default:
		return fmt.Errorf("dp_mode %q: external, internal or hybrid", r.DPMode)
	}
	return nil
}

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
