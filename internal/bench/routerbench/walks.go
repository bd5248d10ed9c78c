package routerbench

import (
	"context"
	"fmt"
	"runtime"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/prefix"
)

// measureWalks takes the times of walks and of a decision's hashing and walking.
func measureWalks(ctx context.Context, o Options, r *IndexResult) error {
	f, err := newFleet(o.Ranks, prefix.MaxBlocksLimit)
	if err != nil {
		return err
	}
	if err := f.background(ctx, o.Background); err != nil {
		return err
	}
	all, one := newChain(f.rng, chain{}, 0, o.Blocks), newChain(f.rng, chain{}, 0, o.Blocks)
	forked := newChain(f.rng, chain{}, 0, o.Blocks)
	for _, h := range f.holders {
		if err := store(f.index, h, all, 0); err != nil {
			return err
		}
		if err := store(f.index, h, forked, 0); err != nil {
			return err
		}
	}
	if err := store(f.index, f.holders[0], one, 0); err != nil {
		return err
	}
	for i := range o.Forks {
		at := (i + 1) * o.Blocks / (o.Forks + 1)
		branch := newChain(f.rng, forked, at, at+eventBlocks)
		if err := store(f.index, f.holders[i%len(f.holders)], branch, at); err != nil {
			return err
		}
	}
	const calls = 200
	for _, w := range []struct {
		seconds *float64
		c       chain
		holders int
	}{{&r.WalkAllHoldSeconds, all, o.Ranks}, {&r.WalkOneHoldsSeconds, one, 1}, {&r.WalkForkedSeconds, forked, o.Ranks}} {
		if err := f.verify(w.c, w.holders); err != nil {
			return err
		}
		*w.seconds = least(o.Rounds, calls, func() { f.index.Walk(f.ranks, w.c.keys, f.out) })
	}
	var scratch prefix.Scratch
	root := blockkey.Tokens.Root(16, connector.Scope{})
	decide := func() { f.index.WalkTokens(f.ranks, root, all.tokens, 16, &scratch, f.out) }
	decide()
	r.DecideFromTokensSeconds = least(o.Rounds, 20, decide)
	r.AllocsPerDecision = allocations(100, decide)
	return ctx.Err()
}

// verify makes sure that what is timed gives the right answer.
func (f *fleet) verify(c chain, holders int) error {
	f.index.Walk(f.ranks, c.keys, f.out)
	full := 0
	for _, r := range f.out {
		if int(r.GPU) == len(c.keys) {
			full++
		}
	}
	if full != holders {
		return fmt.Errorf("%d ranks have all of a prompt that %d hold", full, holders)
	}
	return nil
}

// allocations is how many objects a call allocates in the mean, in the round that has the fewest:
// the rest of the process allocates, too.
func allocations(calls int, call func()) float64 {
	const rounds = 5
	fewest := ^uint64(0)
	for range rounds {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			call()
		}
		runtime.ReadMemStats(&after)
		fewest = min(fewest, after.Mallocs-before.Mallocs)
	}
	return float64(fewest / uint64(calls))
}
