package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/connector"
)

// match is what is known of a waiting request: what the engine has itself and what the
// connector offers.
type match struct {
	// tables are the known blocks, hit the tokens in them.
	tables [][]uint32
	hit    int
	// copyLast says that the last of the known blocks is copied, its last token not used.
	copyLast bool
	// external tokens are loaded after hit; beyond is the hit of each group where
	// they differ.
	external int
	sync     bool
	beyond   []int
}

// lookUp finds what the engine has itself. The last token is always computed: its logits
// are wanted.
func (e *Engine) lookUp(r *request) match {
	m := match{tables: make([][]uint32, len(e.groups))}
	if !e.opts.PrefixCaching {
		return m
	}
	bs := e.opts.BlockSize
	if full := len(r.tokens) / bs; e.opts.PartialReuse && full*bs == len(r.tokens) {
		if m.tables = e.pool.find(r.chain(full, bs), e.groups, bs); len(m.tables[0]) == full {
			m.hit, m.copyLast = len(r.tokens)-1, true
			return m
		}
	}
	m.tables = e.pool.find(r.chain((len(r.tokens)-1)/bs, bs), e.groups, bs)
	m.hit = bs * len(m.tables[0])
	return m
}

// ask asks the connector for what is beyond. Offers that real engines would die of are
// errors.
func (e *Engine) ask(ctx context.Context, r *request, m *match) error {
	offer := e.offer(ctx, r, m.hit)
	switch {
	case offer.Tokens < 0 || m.hit+offer.Tokens >= len(r.tokens):
		return fmt.Errorf("engine: request %q: connector offers %d tokens beyond %d of %d", r.ID, offer.Tokens, m.hit, len(r.tokens))
	case offer.Async && offer.Tokens == 0:
		return fmt.Errorf("engine: request %q: connector offers to load nothing asynchronously", r.ID)
	}
	m.external, m.sync = offer.Tokens, !offer.Async || e.opts.SyncLoads
	if honour := e.opts.TensorRT.Honour; honour != nil && e.opts.Order == TensorRTLLM && offer.Tokens > 0 {
		m.external = min(max(honour(r.ID, offer.Tokens), 0), offer.Tokens) / e.opts.BlockSize * e.opts.BlockSize
	}
	if e.opts.DivergentHits && m.external > 0 {
		e.diverge(r, m)
	}
	return nil
}

// offer asks with the tokens that the leader was not told yet.
func (e *Engine) offer(ctx context.Context, r *request, computed int) connector.Offer {
	q := connector.MatchRequest{
		Request: r.ID, PromptTokens: len(r.Prompt), Computed: computed, Scope: r.Scope, Spans: r.Spans, NoLoad: r.NoLoad, NoSave: r.NoSave, Trace: r.Trace,
	}
	if r.session == e.scheduler.Session() {
		q.From = r.told
	}
	q.Tokens = r.tokens[q.From:]
	offer := e.scheduler.Match(ctx, &q)
	if q.From > 0 && r.session != e.scheduler.Session() { // this leader was told nothing
		q.From, q.Tokens = 0, r.tokens
		offer = e.scheduler.Match(ctx, &q)
	}
	r.session, r.told = e.scheduler.Session(), len(r.tokens)
	return offer
}

// diverge makes use of the blocks after the hit that layers with full attention know.
func (e *Engine) diverge(r *request, m *match) {
	bs := e.opts.BlockSize
	keys := r.chain((m.hit+m.external)/bs, bs)
	beyond := make([]int, len(e.groups))
	differ := false
	for g := range e.groups {
		beyond[g] = m.hit
		if e.groups[g].Window > 0 {
			continue
		}
		if n := e.pool.known(keys, g); n*bs > m.hit {
			m.tables[g], _ = e.pool.after(keys[:n], g)
			beyond[g], differ = n*bs, true
		}
	}
	if differ {
		m.beyond = beyond
	}
}

// take puts the known blocks into the request's tables and holds them.
func (e *Engine) take(r *request, m *match) {
	r.blocks = make([][]uint32, len(e.groups))
	for g := range e.groups {
		r.blocks[g] = slices.Clone(m.tables[g])
		e.pool.hold(r.blocks[g])
	}
}

// copyLast gives the request its own copy of its last known block. It says whether there
// was room.
func (e *Engine) copyLast(p *plan, r *request) bool {
	own, ok := e.pool.take(len(r.blocks))
	if !ok {
		return false
	}
	for g, table := range r.blocks {
		last := &table[len(table)-1]
		p.copies = append(p.copies, blockCopy{dst: own[g], src: *last})
		e.pool.release([]uint32{*last})
		*last = own[g]
	}
	return true
}
