package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/engine/model"
)

// Step runs one step: schedule, start loads, compute, save, take note of ended loads. It
// returns the requests that ended and whether anything happened; if nothing did, the
// caller does well to pause before the next step. An error means that the connector
// broke its contract, and that the engine is of no more use.
func (e *Engine) Step(ctx context.Context) (ended []Result, progress bool, err error) {
	p, err := e.schedule(ctx)
	if err != nil {
		return nil, false, err
	}
	reply := e.scheduler.Step(ctx, &p.step)
	if err := checkPlanned(p.step.Allocs, reply.Loads); err != nil {
		return nil, false, err
	}
	if len(reply.Metadata)+len(reply.Loads) > 0 {
		e.worker.Load(ctx, reply.Metadata, reply.Loads)
	}
	logits := e.forward(p.work)
	if len(reply.Metadata) > 0 {
		e.worker.Save(ctx, reply.Metadata)
	}
	loads := e.worker.Poll(ctx)
	for i, w := range p.work {
		e.advance(w, logits[i])
	}
	if err := e.finishLoads(ctx, loads); err != nil {
		return nil, false, err
	}
	ended, e.results = e.results, nil
	return ended, len(p.work)+len(loads)+len(ended) > 0, nil
}

// checkPlanned reports a load that the engine waits for and nobody runs.
func checkPlanned(allocs []connector.Alloc, loads []connector.PlannedLoad) error {
	for _, a := range allocs {
		planned := slices.ContainsFunc(loads, func(l connector.PlannedLoad) bool { return l.Request == a.Request })
		if (a.External > 0) != planned {
			return fmt.Errorf("engine: request %q was offered %d tokens, load planned: %t", a.Request, a.External, planned)
		}
	}
	return nil
}

// forward computes a step's tokens.
func (e *Engine) forward(all []work) [][]float32 {
	if len(all) == 0 {
		return nil
	}
	batch := make([]model.Chunk, len(all))
	for i, w := range all {
		r := w.request
		batch[i] = model.Chunk{Tokens: r.tokens[r.computed : r.computed+w.count], Start: r.computed, Blocks: r.blocks}
	}
	return e.model.Forward(&e.memory.kv, batch)
}

// advance takes note of computed tokens and, behind the last, samples the next.
func (e *Engine) advance(w work, logits []float32) {
	r := w.request
	r.computed += w.count
	e.publish(r)
	if r.computed < len(r.tokens) {
		return
	}
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	r.tokens = append(r.tokens, uint32(best))
	if len(r.tokens) == len(r.Prompt)+1 {
		r.result.TTFT = time.Since(r.submitted)
	}
	if len(r.tokens) == len(r.Prompt)+r.MaxTokens {
		e.end(r)
	}
}

// publish makes a request's filled blocks findable for others.
func (e *Engine) publish(r *request) {
	if !e.opts.PrefixCaching {
		return
	}
	full := r.computed / e.opts.BlockSize
	for keys := r.chain(full, e.opts.BlockSize); r.published < full; r.published++ {
		e.pool.publish(r.blocks[r.published], keys[r.published])
	}
}

// end takes a request out of the engine, all but blocks that are being loaded into.
func (e *Engine) end(r *request) {
	isR := func(x *request) bool { return x == r }
	e.running, e.waiting = slices.DeleteFunc(e.running, isR), slices.DeleteFunc(e.waiting, isR)
	if r.phase != loading {
		e.drop(r)
	}
	r.result.Tokens = r.tokens[len(r.Prompt):]
	e.results = append(e.results, r.result)
	e.finished = append(e.finished, r.ID)
}

// finishLoads lets the requests of ended loads go on, failed ones from their first bad
// block, and reports to the scheduler's side.
func (e *Engine) finishLoads(ctx context.Context, loads []connector.FinishedLoad) error {
	var report connector.LoadedReport
	for _, l := range loads {
		r := e.inFlight[l.Request]
		if r == nil {
			return fmt.Errorf("engine: connector reports a load of request %q, which has none in flight", l.Request)
		}
		delete(e.inFlight, l.Request)
		report.Done = append(report.Done, l.Request)
		report.InvalidBlocks = append(report.InvalidBlocks, l.FailedBlocks...)
		if err := e.finishLoad(r, l.FailedBlocks); err != nil {
			return err
		}
	}
	if len(report.Done) > 0 {
		e.scheduler.Loaded(ctx, &report)
	}
	return nil
}

func (e *Engine) finishLoad(r *request, failed []uint32) error {
	if r.result.Aborted {
		e.drop(r)
		return nil
	}
	r.phase = waiting
	good := r.computed
	for _, b := range failed {
		i := slices.Index(r.blocks, b)
		if i < r.published {
			return fmt.Errorf("engine: connector reports block %d as failed, which the load of request %q was not to fill", b, r.ID)
		}
		good = min(good, i*e.opts.BlockSize)
	}
	bad := r.computed - good
	r.result.CachedTokens -= bad
	r.result.RecomputedTokens += bad
	r.computed = good
	if good > 0 {
		e.publish(r)
		return nil
	}
	// As in vLLM, a request that is left with nothing starts over, match included.
	e.drop(r)
	if r.failedLoads++; r.failedLoads > maxFailedLoads {
		return fmt.Errorf("engine: request %q was offered %d loads that failed: the connector does not learn from failures", r.ID, r.failedLoads)
	}
	return nil
}
