package replay

import (
	"math"
	"slices"
)

// ByTier is a quantity, or a part of the whole, by the tier where it was found.
type ByTier struct {
	GPU    float64 `json:"gpu"`
	Disk   float64 `json:"disk"`
	Object float64 `json:"object"`
	Total  float64 `json:"total"`
}

// Times sums up a number of times, in seconds. Percentiles are nearest ranks.
type Times struct {
	Mean float64 `json:"mean_s"`
	P50  float64 `json:"p50_s"`
	P90  float64 `json:"p90_s"`
	P95  float64 `json:"p95_s"`
	P99  float64 `json:"p99_s"`
	Max  float64 `json:"max_s"`
}

// Spread says how evenly something is spread over the ranks: the most of a rank over the mean, and the
// coefficient of variation, standard deviation over mean. Both are 0 if there is nothing.
type Spread struct {
	MaxOverMean float64 `json:"max_over_mean"`
	CV          float64 `json:"cv"`
}

// Result is the result of a trace with one policy.
type Result struct {
	// Policy is the name of the policy.
	Policy string `json:"policy"`
	// Served counts the requests that were served, Refused those whose prompt no GPU cache can hold.
	Served  int `json:"served"`
	Refused int `json:"refused"`
	// BlockHits and TokenHits are the parts of all blocks and tokens of served prompts that were found
	// at their heads when their turn came, by tier. A block on several tiers counts for the first.
	BlockHits ByTier `json:"block_hit_rate"`
	TokenHits ByTier `json:"token_hit_rate"`
	// UsedTokens is the part of all tokens that was not computed. It is less than TokenHits.Total where
	// computing was faster than loading, and by the last token of each prompt, which is never cached.
	UsedTokens float64 `json:"used_token_rate"`
	// ComputedTokens are the prompt tokens that were computed.
	ComputedTokens int64 `json:"computed_tokens"`
	// TTFT is the estimated time to first token.
	TTFT Times `json:"ttft"`
	// Computed, Requests and Prompts say how evenly computed tokens, requests and prompt tokens are
	// spread over the ranks.
	Computed Spread `json:"computed_token_balance"`
	Requests Spread `json:"request_balance"`
	Prompts  Spread `json:"prompt_token_balance"`
	// RankRequests and RankComputedTokens are the numbers by rank.
	RankRequests       []float64 `json:"rank_requests"`
	RankComputedTokens []float64 `json:"rank_computed_tokens"`
	// DiskReadBytes and DiskWrittenBytes are the bytes that all disks read and wrote, DroppedSaveBytes those that
	// the disks were too slow to write, ObjectReadBytes those loaded from the object store.
	DiskReadBytes    float64 `json:"disk_read_bytes"`
	DiskWrittenBytes float64 `json:"disk_written_bytes"`
	DroppedSaveBytes float64 `json:"dropped_save_bytes"`
	ObjectReadBytes  float64 `json:"object_read_bytes"`
	// EndSeconds is the time when the last request ended.
	EndSeconds float64 `json:"end_s"`
	// Curve is the capacity curve with requests on the nodes where the policy put them; nil with one
	// node, where it is the same for all policies.
	Curve []CapacityPoint `json:"capacity_curve,omitempty"`

	// ttft are the sorted times to first token, in seconds.
	ttft []float64
	// nodes has the node of each request, -1 for one that was refused.
	nodes []int32
	// capacity has all points of Curve.
	capacity *Capacity
}

type tally struct {
	ttft                        []float64
	blocks, tokens              ByTier
	allBlocks, allTokens        float64
	computed, requests, prompts []float64 // by rank
	refused                     int
	end                         float64
}

func newTally(requests, ranks int) tally {
	return tally{
		ttft: make([]float64, 0, requests), computed: make([]float64, ranks),
		requests: make([]float64, ranks), prompts: make([]float64, ranks),
	}
}

func (t *tally) placed(r *Request, rank int32) {
	t.requests[rank]++
	t.prompts[rank] += float64(r.InputTokens)
}

func (t *tally) found(trace *Trace, r *Request, f *flight, computed int) {
	t.allBlocks += float64(len(r.Blocks))
	t.allTokens += float64(r.InputTokens)
	t.blocks.GPU += float64(f.gpu)
	t.blocks.Disk += float64(f.disk)
	t.blocks.Object += float64(f.object)
	g, d := trace.tokensOf(r, f.gpu), trace.tokensOf(r, f.gpu+f.disk)
	t.tokens.GPU += float64(g)
	t.tokens.Disk += float64(d - g)
	t.tokens.Object += float64(trace.tokensOf(r, f.gpu+f.disk+f.object) - d)
	t.computed[f.rank] += float64(computed)
}

func (s *simulation) result() *Result {
	t := &s.tally
	slices.Sort(t.ttft)
	r := &Result{
		Policy: s.policy.Name(), Served: len(t.ttft), Refused: t.refused,
		BlockHits: t.blocks.over(t.allBlocks), TokenHits: t.tokens.over(t.allTokens),
		TTFT: timesOf(t.ttft), Computed: spreadOf(t.computed), Requests: spreadOf(t.requests), Prompts: spreadOf(t.prompts),
		RankRequests: t.requests, RankComputedTokens: t.computed, EndSeconds: t.end, ttft: t.ttft,
	}
	for _, c := range t.computed {
		r.ComputedTokens += int64(c)
	}
	if t.allTokens > 0 {
		r.UsedTokens = 1 - float64(r.ComputedTokens)/t.allTokens
	}
	for i := range s.nodes {
		n := &s.nodes[i]
		r.DiskReadBytes += n.diskRead
		r.ObjectReadBytes += n.objectRead
		r.DroppedSaveBytes += n.dropped
		r.DiskWrittenBytes += float64(n.disk.writes) * float64(s.trace.BlockTokens) * s.opts.BytesPerToken
	}
	r.nodes = make([]int32, len(s.flights))
	for i := range s.flights {
		r.nodes[i] = -1
		if len(s.trace.Requests[i].Blocks) <= s.opts.GPUBlocks {
			r.nodes[i] = int32(s.ranks[s.flights[i].rank].node)
		}
	}
	return r
}

func (b ByTier) over(all float64) ByTier {
	if all == 0 {
		return ByTier{}
	}
	return ByTier{GPU: b.GPU / all, Disk: b.Disk / all, Object: b.Object / all, Total: (b.GPU + b.Disk + b.Object) / all}
}

func timesOf(sorted []float64) Times {
	if len(sorted) == 0 {
		return Times{}
	}
	sum := 0.0
	for _, v := range sorted {
		sum += v
	}
	at := func(part float64) float64 { return sorted[int(math.Ceil(part*float64(len(sorted))))-1] }
	return Times{Mean: sum / float64(len(sorted)), P50: at(.5), P90: at(.9), P95: at(.95), P99: at(.99), Max: at(1)}
}

func spreadOf(v []float64) Spread {
	sum, most := 0.0, 0.0
	for _, x := range v {
		sum += x
		most = max(most, x)
	}
	if sum == 0 {
		return Spread{}
	}
	mean, squares := sum/float64(len(v)), 0.0
	for _, x := range v {
		squares += float64((x - mean) * (x - mean))
	}
	return Spread{MaxOverMean: most / mean, CV: math.Sqrt(squares/float64(len(v))) / mean}
}
