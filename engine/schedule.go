package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// maxFailedLoads bounds how often a request may go back to waiting because all of its
// load failed. A connector that offers the same blocks again and again would keep the
// engine busy for ever (as it does vLLM).
const maxFailedLoads = 8

// plan is one step: what to compute, and what the connector is told about it.
type plan struct {
	step connector.StepRequest
	work []work
	// budget is the number of tokens that the step may still compute.
	budget int
}

// work is the next count tokens of a request.
type work struct {
	request *request
	count   int
}

// schedule plans a step as vLLM does: running requests first, then, unless one had to
// give way, waiting ones in order of arrival, until the budget is used up.
func (e *Engine) schedule(ctx context.Context) (*plan, error) {
	p := &plan{budget: e.opts.MaxBatchedTokens}
	p.step.Finished, e.finished = e.finished, nil
	for i := 0; i < len(e.running) && p.budget > 0; i++ {
		e.continueRunning(p, e.running[i])
	}
	if len(p.step.Preempted) > 0 {
		return p, nil
	}
	for i := 0; i < len(e.waiting) && p.budget > 0 && len(e.running) < e.opts.MaxSeqs; i++ {
		r := e.waiting[i]
		if r.phase == loading {
			continue
		}
		room, err := e.admit(ctx, p, r)
		if err != nil {
			return nil, err
		}
		if !room {
			break
		}
	}
	e.waiting = slices.DeleteFunc(e.waiting, func(r *request) bool { return r.phase == running })
	return p, nil
}

// continueRunning plans the next tokens of a running request. Without room for them the
// request that was admitted last gives way.
func (e *Engine) continueRunning(p *plan, r *request) {
	count := min(len(r.tokens)-r.computed, p.budget)
	for !e.grow(r, r.computed+count) {
		victim := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		e.preempt(p, victim)
		e.waiting = slices.Insert(e.waiting, 0, victim)
		if victim == r {
			return
		}
	}
	p.compute(r, count, false)
}

// grow makes the block table long enough for tokens.
func (e *Engine) grow(r *request, tokens int) bool {
	need := (tokens+e.opts.BlockSize-1)/e.opts.BlockSize - len(r.blocks)
	blocks, ok := e.pool.take(need)
	if ok {
		e.memory.poison(blocks)
		r.blocks = append(r.blocks, blocks...)
	}
	return ok
}

// preempt takes a request's blocks; it will be computed again.
func (e *Engine) preempt(p *plan, r *request) {
	e.drop(r)
	r.result.Preemptions++
	p.step.Preempted = append(p.step.Preempted, r.ID)
}

// drop gives a request's blocks back and forgets what is computed.
func (e *Engine) drop(r *request) {
	e.pool.release(r.blocks)
	r.phase, r.blocks, r.computed, r.published, r.toldBlocks = waiting, nil, 0, 0, 0
}

// admit gives a waiting request its blocks and plans its first tokens, or its load. It
// says whether there was room.
func (e *Engine) admit(ctx context.Context, p *plan, r *request) (bool, error) {
	var hits []uint32
	var offer connector.Offer
	if r.computed == 0 {
		var err error
		if hits, offer, err = e.match(ctx, r); err != nil {
			return false, err
		}
	}
	hit := len(hits) * e.opts.BlockSize
	end, count := r.computed+hit+offer.Tokens, 0
	if offer.Tokens == 0 {
		count = min(len(r.tokens)-end, p.budget)
	}
	e.pool.hold(hits)
	r.blocks = append(r.blocks, hits...)
	for !e.grow(r, end+count) {
		if len(e.running) == 0 && e.reclaim(p, r) {
			continue
		}
		r.blocks = r.blocks[:len(r.blocks)-len(hits)]
		e.pool.release(hits)
		return false, nil
	}
	p.step.Allocs = append(p.step.Allocs, connector.Alloc{
		Request: r.ID, Blocks: [][]uint32{slices.Clone(r.blocks)}, Computed: r.computed + hit, External: offer.Tokens,
	})
	if r.computed == 0 {
		r.published = len(hits)
		r.result.LocalCachedTokens, r.result.CachedTokens = hit, offer.Tokens
	}
	r.computed = end
	if offer.Tokens > 0 {
		r.phase = loading
		e.inFlight[r.ID] = r
		return true, nil
	}
	r.phase = running
	e.running = append(e.running, r)
	p.compute(r, count, true)
	return true, nil
}

// match looks a request up in the engine's own cache and then asks the connector for what
// is beyond. The last token is always computed: its logits are wanted. Offers that vLLM
// would die of are errors; loads always run beside the steps, so that Offer.Async is not
// looked at.
func (e *Engine) match(ctx context.Context, r *request) ([]uint32, connector.Offer, error) {
	var hits []uint32
	if e.opts.PrefixCaching {
		hits = e.pool.find(r.chain((len(r.tokens)-1)/e.opts.BlockSize, e.opts.BlockSize))
	}
	hit := len(hits) * e.opts.BlockSize
	offer := e.scheduler.Match(ctx, &connector.MatchRequest{
		Request: r.ID, Tokens: r.tokens, Computed: hit, Scope: r.Scope, NoLoad: r.NoLoad, NoSave: r.NoSave,
	})
	r.told = len(r.tokens)
	if offer.Tokens < 0 || hit+offer.Tokens >= len(r.tokens) {
		return nil, offer, fmt.Errorf("engine: request %q: connector offers %d tokens beyond %d of %d", r.ID, offer.Tokens, hit, len(r.tokens))
	}
	return hits, offer, nil
}

// reclaim takes the blocks of the last waiting request that has some, where nothing else
// could ever make room for r. It says whether there was one.
func (e *Engine) reclaim(p *plan, r *request) bool {
	for _, other := range slices.Backward(e.waiting) {
		if other != r && other.phase == waiting && len(other.blocks) > 0 {
			e.preempt(p, other)
			return true
		}
	}
	return false
}

// compute adds work to the plan. reset is set for requests that were not computed in the
// step before.
func (p *plan) compute(r *request, count int, reset bool) {
	if reset {
		r.toldBlocks = 0
	}
	p.step.Scheduled = append(p.step.Scheduled, connector.Scheduled{
		Request: r.ID, NewBlocks: [][]uint32{slices.Clone(r.blocks[r.toldBlocks:])}, Reset: reset,
		Computed: r.computed, Count: count, From: r.told, NewTokens: slices.Clone(r.tokens[r.told:]),
	})
	r.told, r.toldBlocks = len(r.tokens), len(r.blocks)
	p.work = append(p.work, work{request: r, count: count})
	p.budget -= count
}
