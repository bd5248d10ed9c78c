package routerbench

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/kvconn/kvconn/router/prefix"
)

// measureIngest compares the tail of walks with and without a writer beside them. The
// writer stores chains and removes others, as fast as it can, as engines with full caches
// do, and now and then drops and stores again the end of the chain that is walked.
func measureIngest(ctx context.Context, o Options, r *IndexResult) error {
	f, err := newFleet(o.Ranks, prefix.MaxBlocksLimit)
	if err != nil {
		return err
	}
	if err := f.background(ctx, o.Background); err != nil {
		return err
	}
	all := newChain(f.rng, chain{}, 0, o.Blocks)
	for _, h := range f.holders {
		if err := store(f.index, h, all, 0); err != nil {
			return err
		}
	}
	const poolSize = 256
	pool := make([]chain, poolSize)
	for i := range pool {
		pool[i] = newChain(f.rng, chain{}, 0, 512)
	}
	var scratch []time.Duration
	idle, busy := math.Inf(1), math.Inf(1)
	for range 3 {
		scratch = f.timeWalks(all, o.Walks, scratch[:0])
		idle = min(idle, p99(scratch))
		stop, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- f.churn(all, pool, stop) }()
		scratch = f.timeWalks(all, o.Walks, scratch[:0])
		close(stop)
		if err := <-done; err != nil {
			return err
		}
		busy = min(busy, p99(scratch))
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	r.WalkIngestP99Ratio = busy / idle
	return nil
}

// churn stores and removes the chains of a pool in turn until it is stopped. Half of them
// are there at any time.
func (f *fleet) churn(walked chain, pool []chain, stop <-chan struct{}) error {
	for i := range pool {
		slices.Reverse(pool[i].ids) // as they are removed: the last block first
	}
	defer func() {
		for i := range pool {
			f.index.Removed(f.holders[i%len(f.holders)], pool[i].ids)
			slices.Reverse(pool[i].ids)
		}
	}()
	ids := make([]uint64, len(pool[0].ids))
	end := max(0, len(walked.keys)-eventBlocks)
	for i := 0; ; i++ {
		select {
		case <-stop:
			return nil
		default:
		}
		c, gone := i%len(pool), (i+len(pool)/2)%len(pool)
		copy(ids, pool[c].ids)
		slices.Reverse(ids)
		if err := store(f.index, f.holders[c%len(f.holders)], chain{keys: pool[c].keys, ids: ids}, 0); err != nil {
			return err
		}
		f.index.Removed(f.holders[gone%len(f.holders)], pool[gone].ids)
		if i%4 == 0 {
			h := f.holders[i/4%len(f.holders)]
			f.index.Removed(h, walked.ids[end:])
			if err := store(f.index, h, walked, end); err != nil {
				return err
			}
		}
	}
}

// timeWalks takes the time of each of some walks.
func (f *fleet) timeWalks(c chain, walks int, times []time.Duration) []time.Duration {
	for range walks {
		start := time.Now()
		f.index.Walk(f.ranks, c.keys, f.out)
		times = append(times, time.Since(start))
	}
	return times
}

// p99 is the 99th percentile of times, in seconds.
func p99(times []time.Duration) float64 {
	slices.Sort(times)
	return times[len(times)*99/100].Seconds()
}
