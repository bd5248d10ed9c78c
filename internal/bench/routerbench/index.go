package routerbench

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/prefix"
)

// Options says what is measured. The zero value of a field means its default.
type Options struct {
	// Blocks is the length of the prompt walked, in blocks of 16 tokens. Default 8,000.
	Blocks int
	// Ranks is how many ranks there are. Default 64.
	Ranks int
	// Background is how many other blocks the index has. Default 1 million.
	Background int
	// Forks is how many other prompts leave the chain in the forked case. Default 249, or as many as it has
	// blocks.
	Forks int
	// Rounds is how many times each figure is taken; the least counts, which is what other
	// load on the machine disturbs least. Default 15.
	Rounds int
	// Walks is how many walks a round of the tail latency takes. Default 200,000: long
	// enough for the writer's garbage to be collected several times.
	Walks int
	// Progress, if not nil, is told what is measured next.
	Progress func(what string)
}

// EnsureDefaults fills in every field that is zero.
func (o *Options) EnsureDefaults() {
	o.Blocks = cmp.Or(o.Blocks, 8000)
	o.Ranks = cmp.Or(o.Ranks, 64)
	o.Background = cmp.Or(o.Background, 1_000_000)
	o.Forks = cmp.Or(o.Forks, min(249, max(o.Blocks, 1)))
	o.Rounds = cmp.Or(o.Rounds, 15)
	o.Walks = cmp.Or(o.Walks, 200_000)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
}

// Validate reports the first option that cannot be used.
func (o *Options) Validate() error {
	for _, f := range []struct {
		name        string
		value, most int
	}{
		{"Blocks", o.Blocks, 1 << 20}, {"Ranks", o.Ranks, 4096}, {"Background", o.Background, 1 << 25},
		{"Forks", o.Forks, o.Blocks}, {"Rounds", o.Rounds, 1000}, {"Walks", o.Walks, 1 << 24},
	} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("router benchmark: %s %d: 1 to %d", f.name, f.value, f.most)
		}
	}
	return nil
}

// IndexResult is what [Index] measured. Walks yield every rank's prefix, beside the
// background blocks.
type IndexResult struct {
	// WalkAllHoldSeconds is a walk of a prompt that all ranks hold, the keys given;
	// WalkOneHoldsSeconds one that a single rank holds; WalkForkedSeconds one that all
	// hold and that other prompts leave in many places.
	WalkAllHoldSeconds  float64 `json:"walk_all_hold_s"`
	WalkOneHoldsSeconds float64 `json:"walk_one_holds_s"`
	WalkForkedSeconds   float64 `json:"walk_forked_s"`
	// DecideFromTokensSeconds is hashing a prompt that all ranks hold and walking it.
	DecideFromTokensSeconds float64 `json:"decide_from_tokens_s"`
	// WalkIngestP99Ratio is the 99th percentile of a walk's time beside a writer at full
	// speed, over that of an idle index.
	WalkIngestP99Ratio float64 `json:"walk_ingest_p99_ratio"`
	// BytesPerBlock1Rank is the heap per block that one rank holds, BytesPerBlock64Ranks
	// per distinct block that Ranks ranks hold.
	BytesPerBlock1Rank   float64 `json:"bytes_per_block_1_rank"`
	BytesPerBlock64Ranks float64 `json:"bytes_per_block_64_ranks"`
	// AllocsPerDecision is how many objects hashing and walking allocate.
	AllocsPerDecision float64 `json:"allocs_per_decision"`
}

// Index measures the prefix index. It ends early with the context's error.
func Index(ctx context.Context, o Options) (IndexResult, error) {
	var r IndexResult
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return r, err
	}
	for _, part := range []struct {
		name    string
		measure func(context.Context, Options, *IndexResult) error
	}{
		{"memory", measureMemory}, {"walks", measureWalks}, {"walks beside ingest", measureIngest},
	} {
		o.Progress(part.name)
		if err := part.measure(ctx, o, &r); err != nil {
			return r, fmt.Errorf("router benchmark, %s: %w", part.name, err)
		}
		runtime.GC()
	}
	return r, nil
}

// eventBlocks is how many blocks an event stores, as engines report a prefill step.
const eventBlocks = 32

// chain is a prompt: its tokens, keys and the names that the engines have for them.
type chain struct {
	tokens []uint32
	keys   []connector.Key
	ids    []uint64
}

func rootKey() connector.Key { return connector.RootKey(16, connector.Scope{}) }

// newChain makes a prompt that begins with the first shared blocks of a base.
func newChain(rng *rand.Rand, base chain, shared, blocks int) chain {
	c := chain{tokens: append([]uint32(nil), base.tokens[:shared*16]...)}
	for len(c.tokens) < blocks*16 {
		c.tokens = append(c.tokens, rng.Uint32N(128_000))
	}
	c.keys = new(connector.KeyHasher).Append(nil, rootKey(), c.tokens, 16)
	for _, k := range c.keys {
		c.ids = append(c.ids, prefix.KeyID(k)*0x9e3779b97f4a7c15)
	}
	return c
}

// store reports the blocks of a chain from an offset on, event by event.
func store(x *prefix.Index, h prefix.Holder, c chain, from int) error {
	for ; from < len(c.keys); from += eventBlocks {
		to := min(from+eventBlocks, len(c.keys))
		var parent uint64
		if from > 0 {
			parent = c.ids[from-1]
		}
		if err := x.Stored(h, parent, from > 0, c.ids[from:to], c.keys[from:to]); err != nil {
			return err
		}
	}
	return nil
}

// fleet is an index with ranks.
type fleet struct {
	index   *prefix.Index
	holders []prefix.Holder
	ranks   *prefix.Ranks
	out     []prefix.Result
	rng     *rand.Rand
}

func newFleet(ranks, maxBlocks int) (*fleet, error) {
	x, err := prefix.New(prefix.Options{MaxBlocks: maxBlocks, MaxBytes: 64 << 30})
	if err != nil {
		return nil, err
	}
	f := &fleet{index: x, out: make([]prefix.Result, ranks), rng: rand.New(rand.NewPCG(1, 1))}
	var list []prefix.Rank
	for range ranks {
		h, err := x.AddHolder("engine")
		if err != nil {
			return nil, err
		}
		f.holders = append(f.holders, h)
		list = append(list, prefix.Rank{GPU: h, HasGPU: true})
	}
	f.ranks, err = prefix.NewRanks(list)
	return f, err
}

// background stores chains of their own for the ranks in turn.
func (f *fleet) background(ctx context.Context, blocks int) error {
	const length = 1000
	for i := 0; blocks > 0; i++ {
		c := newChain(f.rng, chain{}, 0, min(length, blocks))
		blocks -= len(c.keys)
		if err := store(f.index, f.holders[i%len(f.holders)], c, 0); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// least is the shortest mean time of a call, in seconds, over rounds of some calls each.
func least(rounds, calls int, call func()) float64 {
	best := time.Duration(1 << 62)
	for range rounds {
		start := time.Now()
		for range calls {
			call()
		}
		best = min(best, time.Since(start))
	}
	return best.Seconds() / float64(calls)
}
