package engine

import (
	"context"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// admit gives a waiting request its blocks and plans its first tokens, or its load. It
// says whether there was room.
func (e *Engine) admit(ctx context.Context, p *plan, r *request) (bool, error) {
	isNew := r.blocks == nil
	m := match{hit: r.computed}
	if isNew {
		m = e.lookUp(r)
		if e.opts.Order == TensorRTLLM && !e.makeRoom(p, r) {
			return false, nil
		}
		if err := e.ask(ctx, r, &m); err != nil {
			return false, err
		}
	}
	count := 0
	if m.external == 0 || m.sync {
		count = min(len(r.tokens)-m.hit-m.external, p.budget)
	}
	if !e.allocate(p, r, &m, isNew, count) {
		return false, nil
	}
	if isNew || e.opts.Order == VLLM {
		e.tellAlloc(p, r, &m)
	}
	if isNew {
		r.published = m.hit / e.opts.BlockSize
		r.result.LocalCachedTokens, r.result.CachedTokens = m.hit, m.external
	}
	if count == 0 {
		r.phase = loading
		return true, nil
	}
	r.phase = running
	e.running = append(e.running, r)
	p.compute(r, count, true)
	if m.external > 0 && e.opts.Order == TensorRTLLM && e.opts.TensorRT.DeviceComputed {
		p.step.Scheduled[len(p.step.Scheduled)-1].Computed = m.hit
	}
	return true, nil
}

// makeRoom says whether there is room for all tokens of a request, whatever the connector
// offers: where it is asked only once, the allocation that follows must not fail.
func (e *Engine) makeRoom(p *plan, r *request) bool {
	need := len(e.groups) * ((len(r.tokens) + e.opts.BlockSize - 1) / e.opts.BlockSize)
	for e.pool.free < need {
		if len(e.running) > 0 || !e.reclaim(p, r) {
			return false
		}
	}
	return true
}

// allocate makes the request's block tables long enough for what is known, what is loaded
// and count tokens after that. Without room for them it changes nothing and returns false.
func (e *Engine) allocate(p *plan, r *request, m *match, isNew bool, count int) bool {
	fresh, copies := len(p.fresh), len(p.copies)
	if isNew {
		e.take(r, m)
	}
	r.computed = m.hit + m.external
	if m.external == 0 {
		e.slide(r) // a load that fails falls back on what it would give back
	}
	tokens := r.computed + count
	if e.opts.Order == TensorRTLLM && e.opts.TensorRT.AllocatePrompt {
		tokens = max(tokens, len(r.tokens))
	}
	for !e.grow(p, r, tokens) || (m.copyLast && !e.copyLast(p, r)) {
		if len(e.running) == 0 && e.reclaim(p, r) {
			continue
		}
		p.fresh, p.copies = p.fresh[:fresh], p.copies[:copies]
		if isNew {
			e.drop(r)
		}
		return false
	}
	return true
}

// tellAlloc tells the connector of an allocation, and notes the load that it plans.
func (e *Engine) tellAlloc(p *plan, r *request, m *match) {
	a := connector.Alloc{Request: r.ID, Computed: m.hit, External: m.external, GroupComputed: m.beyond}
	for _, table := range r.blocks {
		a.Blocks = append(a.Blocks, slices.Clone(table))
	}
	p.step.Allocs = append(p.step.Allocs, a)
	if m.external == 0 {
		return
	}
	r.load = &load{from: m.hit, to: a.Boundary(), index: make(map[uint32]int), sync: m.sync}
	for s := range a.Stretches(&e.manifest) {
		for i, slot := range s.Slots {
			r.load.index[slot] = s.First + i
		}
	}
	e.inFlight[r.ID] = r
}

// reclaim takes the blocks of the last waiting request that has some, where nothing else
// could ever make room for r. It says whether there was one.
func (e *Engine) reclaim(p *plan, r *request) bool {
	for _, other := range slices.Backward(e.waiting) {
		if other != r && other.phase == waiting && len(other.blocks) > 0 {
			p.step.Preempted = append(p.step.Preempted, other.ID)
			other.result.Preemptions++
			e.drop(other)
			return true
		}
	}
	return false
}
