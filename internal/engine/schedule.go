package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// maxBarren bounds how often requests may lose their blocks between two generated tokens.
const maxBarren = 2_000

// plan is one step: what to compute, and what the connector is told about it.
type plan struct {
	step connector.StepRequest
	// reply is the connector's answer.
	reply connector.StepReply
	work  []work
	// fresh blocks are poisoned, after the copies, before anything else is done.
	fresh  []uint32
	copies []blockCopy
	// budget is the number of tokens that the step may still compute.
	budget int
}

type blockCopy struct{ dst, src uint32 }

// work is the tokens [start, start+count) of a request, as it was when it was planned.
type work struct {
	request      *request
	start, count int
	blocks       [][]uint32
	life         int
	// samples says that a token is generated after the last.
	samples bool
}

// schedule plans a step as vLLM does: running requests first, then, unless one had to
// give way or has no room, waiting ones in order of arrival, until the budget is used up.
func (e *Engine) schedule(ctx context.Context) (*plan, error) {
	p := &plan{budget: e.opts.MaxBatchedTokens}
	p.step.Finished, e.finished = e.finished, nil
	p.step.Preempted, e.preempted = e.preempted, nil
	before, room := len(p.step.Preempted), true
	for i := 0; i < len(e.running) && p.budget > 0; i++ {
		room = e.continueRunning(p, e.running[i])
	}
	if !room || len(p.step.Preempted) > before {
		return p, e.checkProgress(p)
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
	return p, e.checkProgress(p)
}

// checkProgress reports that requests can never go on.
func (e *Engine) checkProgress(p *plan) error {
	planned := len(p.work)+len(p.step.Allocs)+len(p.step.Preempted)+len(e.inFlight) > 0 || (e.planned != nil && e.planned.something())
	if e.barren += len(p.step.Preempted); e.barren > maxBarren {
		return fmt.Errorf("engine: requests lost their blocks %d times, and not one token was generated meanwhile", e.barren)
	}
	if requests := len(e.running) + len(e.waiting); requests > 0 && !planned {
		return fmt.Errorf("engine: %d requests cannot go on, no load is in flight, and %d of %d blocks are free", requests, e.pool.free, e.opts.Blocks-1)
	}
	return nil
}

// continueRunning plans the next tokens of a running request. Without room for them the
// request that was admitted last gives way. The last one that is left does not, unlike in
// vLLM, where requests can so take each other's blocks without end: waiting requests lose
// theirs to it, and it waits for those that are being loaded into. Then the result is false.
func (e *Engine) continueRunning(p *plan, r *request) bool {
	count := min(len(r.tokens)+r.sampling, r.total()-1) - r.computed
	if count = min(count, p.budget); count <= 0 {
		return true
	}
	e.slide(r)
	for !e.grow(p, r, r.computed+count) {
		if len(e.running) == 1 {
			if e.reclaim(p, r) {
				continue
			}
			return false
		}
		victim := e.running[len(e.running)-1]
		p.step.Preempted = append(p.step.Preempted, victim.ID)
		victim.result.Preemptions++
		e.retreat(victim)
		if victim == r {
			return true
		}
	}
	p.compute(r, count, false)
	return true
}

// retreat takes a request's blocks and lets it wait as if it were new. Blocks that are
// being loaded into are taken when the load has ended.
func (e *Engine) retreat(r *request) {
	if r.phase == running {
		e.running = slices.DeleteFunc(e.running, func(x *request) bool { return x == r })
		e.waiting = slices.Insert(e.waiting, 0, r)
	}
	if r.load != nil {
		r.restart, r.phase = true, loading
		return
	}
	e.drop(r)
}

// slide gives back the blocks that no token after the computed ones looks back on.
func (e *Engine) slide(r *request) {
	for g := range e.groups {
		table := r.blocks[g]
		first := min(e.groups[g].FirstBlock(r.computed, e.opts.BlockSize), len(table))
		for i := first - 1; i >= 0 && table[i] != connector.NoBlock; i-- {
			e.pool.release(table[i : i+1])
			table[i] = connector.NoBlock
		}
	}
}

// grow makes the block tables long enough for tokens, without the blocks that are outside
// of the window of the first token that is to be computed. It says whether there was
// room.
func (e *Engine) grow(p *plan, r *request, tokens int) bool {
	end := (tokens + e.opts.BlockSize - 1) / e.opts.BlockSize
	var need int
	for g := range e.groups {
		need += max(0, end-max(len(r.blocks[g]), e.groups[g].FirstBlock(r.computed, e.opts.BlockSize)))
	}
	blocks, ok := e.pool.take(need)
	if !ok {
		return false
	}
	p.fresh = append(p.fresh, blocks...)
	for g := range e.groups {
		first := e.groups[g].FirstBlock(r.computed, e.opts.BlockSize)
		for i := len(r.blocks[g]); i < end; i++ {
			b := uint32(connector.NoBlock)
			if i >= first {
				b, blocks = blocks[0], blocks[1:]
			}
			r.blocks[g] = append(r.blocks[g], b)
		}
	}
	return true
}

// drop gives a request's blocks back and forgets what is computed.
func (e *Engine) drop(r *request) {
	for _, table := range r.blocks {
		e.pool.release(table)
	}
	r.phase, r.blocks, r.computed, r.published, r.toldBlocks, r.load, r.restart = waiting, nil, 0, 0, 0, nil, false
	r.life++
}

// compute adds work to the plan. reset is set for requests that were not computed in the
// step before.
func (p *plan) compute(r *request, count int, reset bool) {
	if reset {
		r.toldBlocks = 0
	}
	told := make([][]uint32, len(r.blocks))
	w := work{request: r, start: r.computed, count: count, life: r.life, blocks: make([][]uint32, len(r.blocks))}
	for g, table := range r.blocks {
		w.blocks[g] = slices.Clone(table)
		told[g] = w.blocks[g][r.toldBlocks:]
	}
	p.step.Scheduled = append(p.step.Scheduled, connector.Scheduled{
		Request: r.ID, NewBlocks: told, Reset: reset,
		Computed: r.computed, Count: count, From: r.told, NewTokens: slices.Clone(r.tokens[r.told:]),
	})
	r.told, r.toldBlocks = len(r.tokens), len(r.blocks[0])
	r.computed += count
	if w.samples = r.computed == len(r.tokens)+r.sampling; w.samples {
		r.sampling++
	}
	p.work = append(p.work, w)
	p.budget -= count
}
