package replay

import (
	"cmp"
	"errors"
	"fmt"
	"math"
)

// Options are the machines and the timing of a simulation. Times are in seconds.
type Options struct {
	// Ranks is the number of data-parallel ranks, Nodes that of the nodes they are spread over evenly.
	// Defaults 8 and 1.
	Ranks int `json:"ranks"`
	Nodes int `json:"nodes"`
	// GPUBlocks is the size of each rank's cache in token blocks. Default 1,000.
	GPUBlocks int `json:"gpu_blocks"`
	// DiskBlocks is the size of each node's disk tier. Default 30,000; negative: none.
	DiskBlocks int `json:"disk_blocks"`
	// ObjectBlocks is the size of the object tier, which all nodes share. Default 0: none.
	ObjectBlocks int `json:"object_blocks"`

	// PrefillTokensPerS is how many prompt tokens a rank computes in a second. Default 10,000.
	PrefillTokensPerS float64 `json:"prefill_tokens_per_s"`
	// BytesPerToken is the size of a token's KV. Default 128 KiB: an 8B model with grouped heads in
	// 16 bits.
	BytesPerToken float64 `json:"bytes_per_token"`
	// DiskBytesPerS is the bandwidth of a node's disk, ObjectBytesPerS that between a node and the
	// object store. Defaults 3e9, one NVMe disk of the better kind, and 1e9.
	DiskBytesPerS   float64 `json:"disk_bytes_per_s"`
	ObjectBytesPerS float64 `json:"object_bytes_per_s"`
	// SaveBytesPerS is what a node's disk can write; saves that come more than a second too fast are
	// dropped, the ends of prompts first. Default 0: every save is kept.
	SaveBytesPerS float64 `json:"save_bytes_per_s"`
	// DiskDelay and ObjectDelay are the times before the first byte of a load. Defaults 0 and 0.03;
	// negative: 0.
	DiskDelay   float64 `json:"disk_delay_s"`
	ObjectDelay float64 `json:"object_delay_s"`
	// DecodeTokenTime is the time for each token of an answer. Default 0.025; negative: 0.
	DecodeTokenTime float64 `json:"decode_token_time_s"`
	// MaxRunning bounds the requests that a rank serves at once, decoding included. Default 256.
	MaxRunning int `json:"max_running"`
	// OverlapLoads lets prompts load while their rank computes others, as engines with asynchronous
	// connectors can. The policy cost takes account of it.
	OverlapLoads bool `json:"overlap_loads"`
	// AlwaysLoad loads every hit, even where computing is faster.
	AlwaysLoad bool `json:"always_load"`

	// PredictTTL is how long the router counts a prompt that it has placed as cached there; it goes on as long as the
	// prompt waits for its prefill. Default 5, as the router's; negative: only what is in a GPU counts.
	PredictTTL float64 `json:"predict_ttl_s"`

	// Speed is how much faster than recorded the requests arrive. Default 1.
	Speed float64 `json:"speed"`
	// Spread delays each arrival by a random time below it, for traces with a coarse clock. Default 0.
	Spread float64 `json:"spread_s"`
	// Sequential lets each request arrive when the one before has finished, whatever the trace's clock
	// says: hit rates without effects of time.
	Sequential bool `json:"sequential"`
	// FullBlocksOnly leaves the partial blocks at the ends of prompts out, as engines do.
	FullBlocksOnly bool `json:"full_blocks_only"`
	// Seed chooses the random times and how policies break ties. Equal seeds give equal results.
	Seed uint32 `json:"seed"`
}

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Ranks = cmp.Or(o.Ranks, 8)
	o.Nodes = cmp.Or(o.Nodes, 1)
	o.GPUBlocks = cmp.Or(o.GPUBlocks, 1000)
	o.DiskBlocks = cmp.Or(o.DiskBlocks, 30000)
	o.PrefillTokensPerS = cmp.Or(o.PrefillTokensPerS, 10000)
	o.BytesPerToken = cmp.Or(o.BytesPerToken, 128<<10)
	o.DiskBytesPerS = cmp.Or(o.DiskBytesPerS, 3e9)
	o.ObjectBytesPerS = cmp.Or(o.ObjectBytesPerS, 1e9)
	o.ObjectDelay = cmp.Or(o.ObjectDelay, 0.03)
	o.DecodeTokenTime = cmp.Or(o.DecodeTokenTime, 0.025)
	o.MaxRunning = cmp.Or(o.MaxRunning, 256)
	o.PredictTTL = cmp.Or(o.PredictTTL, 5)
	o.Speed = cmp.Or(o.Speed, 1)
}

// effective returns the options with 0 in place of the negative numbers that stand for none.
func (o Options) effective() Options {
	o.DiskBlocks, o.ObjectBlocks = max(o.DiskBlocks, 0), max(o.ObjectBlocks, 0)
	o.DiskDelay, o.ObjectDelay = max(o.DiskDelay, 0), max(o.ObjectDelay, 0)
	o.DecodeTokenTime, o.PredictTTL = max(o.DecodeTokenTime, 0), max(o.PredictTTL, 0)
	return o
}

// maxRanks bounds the ranks: what router/inflight takes.
const maxRanks = 4096

// least and most bound speeds and sizes: with others, times would not be numbers any more.
const least, most = 1e-9, 1e18

// Validate reports the first option that cannot work.
func (o *Options) Validate() error {
	switch {
	case o.Ranks < 1 || o.Ranks > maxRanks:
		return fmt.Errorf("replay: %d ranks: want 1 to %d", o.Ranks, maxRanks)
	case o.Nodes < 1 || o.Ranks%o.Nodes != 0:
		return fmt.Errorf("replay: %d ranks cannot be spread evenly over %d nodes", o.Ranks, o.Nodes)
	case o.GPUBlocks < 1 || o.GPUBlocks > math.MaxInt32:
		return fmt.Errorf("replay: a GPU cache of %d blocks: want 1 to %d", o.GPUBlocks, math.MaxInt32)
	case o.DiskBlocks > math.MaxInt32 || o.ObjectBlocks > math.MaxInt32:
		return fmt.Errorf("replay: a tier has at most %d blocks", math.MaxInt32)
	case o.MaxRunning < 1:
		return errors.New("replay: a rank must run at least one request")
	case !(o.SaveBytesPerS >= 0 && o.SaveBytesPerS <= most):
		return fmt.Errorf("replay: the bandwidth of saves is %v: want 0 to %g", o.SaveBytesPerS, most)
	case !(o.Spread >= 0):
		return errors.New("replay: the spread of arrivals must not be negative")
	case !(max(o.Spread, o.DiskDelay, o.ObjectDelay, o.DecodeTokenTime, o.PredictTTL) <= maxClock):
		return fmt.Errorf("replay: delays and times are at most %g s", float64(maxClock))
	}
	for _, v := range []struct {
		name  string
		value float64
	}{
		{"prefill speed", o.PrefillTokensPerS}, {"bytes per token", o.BytesPerToken}, {"disk bandwidth", o.DiskBytesPerS},
		{"object store bandwidth", o.ObjectBytesPerS}, {"speed factor", o.Speed},
	} {
		if !(v.value >= least && v.value <= most) {
			return fmt.Errorf("replay: the %s is %v: want a positive number, %g to %g", v.name, v.value, least, most)
		}
	}
	return nil
}
