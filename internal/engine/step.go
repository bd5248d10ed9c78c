package engine

import (
	"context"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/engine/model"
)

// Step runs one step: schedule, start loads, compute, save, take note of ended loads. It
// returns the requests that ended and whether anything happened; if nothing did, the
// caller does well to pause before the next step. An error means that the connector
// broke its contract, that a rank is lost, or that a load failed in an engine that cannot
// live with that, and that the engine is of no more use.
func (e *Engine) Step(ctx context.Context) (ended []Result, progress bool, err error) {
	p, err := e.schedule(ctx)
	if err != nil {
		return nil, false, err
	}
	p.reply = e.scheduler.Step(ctx, &p.step)
	if err := e.checkPlanned(p); err != nil {
		return nil, false, err
	}
	if e.opts.Overlap {
		progress = p.something()
		p, e.planned = e.planned, p
	}
	if p != nil {
		something, err := e.execute(ctx, p)
		if err != nil {
			return nil, false, err
		}
		progress = progress || something
	}
	ended, e.results = e.results, nil
	return ended, progress || len(ended) > 0, nil
}

// something says whether a plan has anything to execute.
func (p *plan) something() bool { return len(p.work)+len(p.reply.Loads)+len(p.reply.Metadata) > 0 }

// checkPlanned reports loads that are not what the engine waits for.
func (e *Engine) checkPlanned(p *plan) error {
	planned := make(map[string][]uint32, len(p.reply.Loads))
	for _, l := range p.reply.Loads {
		planned[l.Request] = l.Blocks
	}
	for _, a := range p.step.Allocs {
		blocks, ok := planned[a.Request]
		if (a.External > 0) != ok {
			return fmt.Errorf("engine: request %q was offered %d tokens, load planned: %t", a.Request, a.External, ok)
		}
		if !ok {
			continue
		}
		delete(planned, a.Request)
		index := e.inFlight[a.Request].load.index
		strange := slices.ContainsFunc(blocks, func(b uint32) bool { _, ok := index[b]; return !ok })
		if strange || len(blocks) != len(index) {
			return fmt.Errorf("engine: request %q waits for %d blocks, the connector loads %d, strange ones among them: %t", a.Request, len(index), len(blocks), strange)
		}
	}
	for id := range planned {
		return fmt.Errorf("engine: connector loads for request %q, which waits for nothing", id)
	}
	return nil
}

// execute does what is planned. It says whether anything happened.
func (e *Engine) execute(ctx context.Context, p *plan) (bool, error) {
	e.steps++
	e.prepare(p)
	if len(p.reply.Metadata)+len(p.reply.Loads) > 0 {
		if err := e.ranks.load(ctx, p.reply.Metadata, p.reply.Loads); err != nil {
			return false, err
		}
	}
	loads, err := e.await(ctx, p)
	if err != nil {
		return false, err
	}
	var logits [][]float32
	if drop := e.opts.TensorRT.DropBatch; drop != nil && drop(e.steps) {
		e.dropBatch(p)
	} else {
		logits = e.forward(p.work)
		if len(p.reply.Metadata) > 0 {
			if err := e.ranks.save(ctx, p.reply.Metadata); err != nil {
				return false, err
			}
		}
	}
	more, err := e.ranks.poll(ctx)
	if err != nil {
		return false, err
	}
	loads = append(loads, more...)
	if err := e.finishLoads(ctx, loads); err != nil {
		return false, err
	}
	for i, w := range p.work {
		e.advance(w, logits[i])
	}
	return len(p.work)+len(loads) > 0, nil
}

// prepare makes blocks that were handed out what they are to be before anyone uses them.
func (e *Engine) prepare(p *plan) {
	e.ranks.reuse(p)
	for _, m := range e.memories {
		for _, c := range p.copies {
			m.copy(c.dst, c.src)
		}
		m.poison(p.fresh)
	}
}

// await polls until the synchronous loads of a step have ended, and returns all that did.
func (e *Engine) await(ctx context.Context, p *plan) ([]connector.FinishedLoad, error) {
	waiting := make(map[string]bool)
	for _, l := range p.reply.Loads {
		if r := e.inFlight[l.Request]; r != nil && r.load.sync {
			waiting[l.Request] = true
		}
	}
	var ended []connector.FinishedLoad
	for len(waiting) > 0 {
		loads, err := e.ranks.poll(ctx)
		if err != nil {
			return nil, err
		}
		for _, l := range loads {
			if waiting[l.Request] && len(l.FailedBlocks) > 0 && (e.opts.Order == TensorRTLLM || e.opts.Overlap) {
				return nil, loadError(&l)
			}
			delete(waiting, l.Request)
		}
		ended = append(ended, loads...)
		if len(waiting) == 0 {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("engine: await loads: %w", err)
		}
		time.Sleep(idleDelay)
	}
	return ended, nil
}

// forward computes a step's tokens.
func (e *Engine) forward(all []work) [][]float32 {
	if len(all) == 0 {
		return nil
	}
	batch := make([]model.Chunk, len(all))
	for i, w := range all {
		batch[i] = w.request.chunk(w.start, w.count, w.blocks)
	}
	return e.model.Forward(&e.kv, batch)
}

// dropBatch forgets the work of a step; its requests start over.
func (e *Engine) dropBatch(p *plan) {
	for _, w := range p.work {
		if w.samples {
			w.request.sampling--
		}
		if !w.request.ended {
			e.Restart(w.request.ID)
		}
	}
	p.work = nil
}

// advance takes note of computed tokens and, after the last, samples the next.
func (e *Engine) advance(w work, logits []float32) {
	r := w.request
	if w.samples {
		r.sampling--
	}
	if r.ended || r.spoilt {
		r.spoilt = false
		return
	}
	if w.life == r.life {
		e.publish(r, w.start+w.count)
	}
	if !w.samples {
		return
	}
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	r.tokens = append(r.tokens, uint32(best))
	e.barren = 0
	r.result.Logits = xxh3.HashSeed(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(logits))), 4*len(logits)), r.result.Logits)
	if len(r.tokens) == len(r.Prompt)+1 {
		r.result.TTFT = time.Since(r.submitted)
	}
	if len(r.tokens) == r.total() {
		e.end(r)
	}
}

// publish makes a request's filled blocks findable for others.
func (e *Engine) publish(r *request, computed int) {
	if !e.opts.PrefixCaching {
		return
	}
	full := computed / e.opts.BlockSize
	for keys := r.chain(full, e.opts.BlockSize); r.published < full; r.published++ {
		for g, table := range r.blocks {
			e.pool.publish(table[r.published], content{g, keys[r.published]})
		}
	}
}

// end takes a request out of the engine, all but blocks that are being loaded into.
func (e *Engine) end(r *request) {
	isR := func(x *request) bool { return x == r }
	e.running, e.waiting = slices.DeleteFunc(e.running, isR), slices.DeleteFunc(e.waiting, isR)
	r.ended = true
	if r.load == nil {
		e.drop(r)
	}
	r.result.Tokens = r.tokens[len(r.Prompt):]
	e.results = append(e.results, r.result)
	e.finished = append(e.finished, r.ID)
}
