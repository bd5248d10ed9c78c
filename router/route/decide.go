package route

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/load"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
)

// Route decides where a request goes, books it there and predicts its blocks there. The answer is in d,
// which also says why if it is nowhere: see policy.Decision. The request counts as load until
// [Router.Finish].
//
// Errors wrap [ErrUnknownModel], [ErrPromptTooLong], [ErrBusy], or are those of ctx.
func (r *Router) Route(ctx context.Context, req *Request, d *Decision) error {
	d.reset()
	if err := ctx.Err(); err != nil {
		return err
	}
	to, err := r.find(req.Model)
	if err != nil {
		return err
	}
	tokens := req.Length
	if req.Tokens != nil {
		tokens = len(req.Tokens)
	}
	if tokens < 0 || tokens > r.opts.MaxPromptTokens {
		return fmt.Errorf("%w: %d tokens, at most %d", ErrPromptTooLong, tokens, r.opts.MaxPromptTokens)
	}
	s := r.take()
	defer r.give(s)
	d.Model = to.pool.model
	return r.decide(to, req, tokens, s, d)
}

func (r *Router) find(model string) (target, error) {
	models := *r.models.Load()
	if to, ok := models[model]; ok {
		return to, nil
	}
	if model == "" {
		var only *pool
		for _, to := range models {
			if only != nil && to.pool != only {
				return target{}, fmt.Errorf("%w: the request names none, and there are several", ErrUnknownModel)
			}
			only = to.pool
		}
		if only != nil {
			return target{pool: only}, nil
		}
	}
	if len(models) == 0 {
		return target{}, fmt.Errorf("%w %.64q: there are no ranks", ErrUnknownModel, model)
	}
	return target{}, fmt.Errorf("%w %.64q", ErrUnknownModel, model)
}

// rootCache keeps the root key of the scope met last: a tenant's requests come in bursts.
type rootCache struct {
	scope     connector.Scope
	blockSize int
	key       connector.Key
}

func (c *rootCache) of(p *pool, scope connector.Scope) connector.Key {
	if scope == (connector.Scope{}) {
		return p.root
	}
	if c.scope != scope || c.blockSize != p.blockSize {
		c.scope, c.blockSize = scope, p.blockSize
		c.key = connector.RootKey(p.blockSize, scope)
	}
	return c.key
}

// walk finds every rank's prefix. A prompt of a scope other than the plain one is announced to the stores'
// feeds first.
func (r *Router) walk(s *scratch, p *pool, v *view, tokens []uint32, scope connector.Scope) {
	root := s.root.of(p, scope)
	if root != p.root {
		for _, from := range v.sources {
			from.feed.NoteRoot(root)
		}
	}
	if cap(s.results) < len(v.states) {
		s.results = make([]prefix.Result, len(v.states))
	}
	s.results = s.results[:len(v.states)]
	r.index.WalkTokens(v.ranks, root, tokens, p.blockSize, &s.walk, s.results)
}

func (r *Router) decide(to target, req *Request, tokens int, s *scratch, d *Decision) error {
	p, id := to.pool, r.ids.Add(1)
	scope := req.Scope
	if scope.LoRA == "" {
		scope.LoRA = to.lora
	}
	for {
		v := p.view.Load()
		r.walk(s, p, v, req.Tokens, scope)
		d.Matches = appendMatches(d.Matches[:0], s.results, p.blockSize)
		leaveLastToken(d.Matches, tokens, p.blockSize)
		p.mu.Lock()
		if p.view.Load() != v {
			p.mu.Unlock()
			continue // a rank came or went meanwhile
		}
		p.decide(v, req, id, tokens, d.Matches, d)
		if !d.Placed() {
			p.mu.Unlock()
			break
		}
		err := r.book(p, v, req, id, tokens, s, d)
		if err == nil {
			// Under the lock: a rank that is removed meanwhile leaves its number to another.
			r.predict(p, v.states[d.Index], len(req.Tokens), s, d)
		}
		p.mu.Unlock()
		if err != nil {
			d.reset()
			return err
		}
		break
	}
	r.counts.add(d, tokens)
	if !req.Explain {
		d.Matches = d.Matches[:0]
	}
	return nil
}

func appendMatches(m []policy.Match, results []prefix.Result, blockSize int) []policy.Match {
	n := int32(blockSize)
	for i := range results {
		x := &results[i]
		m = append(m, policy.Match{
			GPU: x.GPU * n, Disk: x.Disk * n, Object: x.Object * n,
			Usable: x.Usable * n, LoadDisk: x.FromDisk * n, LoadObject: x.FromObject * n,
		})
	}
	return m
}

// leaveLastToken takes the block with the prompt's last token out of matches: every engine computes that one
// (vLLM, SGLang and TensorRT-LLM look up all tokens but the last), whoever holds it.
func leaveLastToken(matches []policy.Match, tokens, blockSize int) {
	if tokens == 0 || tokens%blockSize != 0 {
		return
	}
	limit := int32(tokens - blockSize)
	for i := range matches {
		m := &matches[i]
		// What follows the GPU's prefix goes first. Of a prefix of several tiers it is not known which has
		// the last block: it is taken for the slowest.
		over := max(m.GPU+m.Disk+m.Object-limit, 0)
		over -= cut(&m.Object, over)
		over -= cut(&m.Disk, over)
		cut(&m.GPU, over)
		over = max(m.Usable-limit, 0)
		m.Usable -= over
		over -= cut(&m.LoadObject, over)
		cut(&m.LoadDisk, over)
	}
}

// cut takes up to n off v and returns how much that was.
func cut(v *int32, n int32) int32 {
	n = min(n, *v)
	*v -= n
	return n
}

// book counts a placed request as load. The caller holds the pool's mu.
func (r *Router) book(p *pool, v *view, req *Request, id uint64, tokens int, s *scratch, d *Decision) error {
	state, spec := v.states[d.Index], v.states[d.Index].spec.Load()
	d.Handle, d.Match = id, d.Matches[d.Index]
	d.Endpoint, d.Header = spec.Endpoint, spec.HeaderValue()
	booking := load.Request{
		ID: id, Rank: d.Rank, PromptTokens: tokens,
		CachedTokens: int(d.UseTokens), DiskTokens: int(d.LoadDisk), ObjectTokens: int(d.LoadObject),
	}
	if r.opts.Load.AssumeKVReuse && req.Tokens != nil {
		keys := s.walk.Keys()
		booking.Keys = keys[:min(len(keys), r.opts.SharedBlocks)]
	}
	if err := p.tracker.Add(booking); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	now := r.opts.Now()
	e := flight{pool: p, rank: state, placed: now, heard: now}
	if p.loads[d.Index].QueuedRequests == 0 && d.LoadDisk|d.LoadObject == 0 && req.Tokens != nil {
		e.compute = int32(tokens) - d.UseTokens
	}
	if req.Silent {
		e.assume = p.assumed(d, tokens, now)
	}
	r.flights.add(id, e)
	return nil
}

// predict notes that a rank is going to have the prompt's blocks, unless its events have said so already.
func (r *Router) predict(p *pool, s *rankState, tokens int, sc *scratch, d *Decision) {
	ttl := r.opts.PredictTTL
	if s.events == nil {
		ttl = r.opts.ApproximateTTL
	} else if int(sc.results[d.Index].GPU) == tokens/p.blockSize {
		return
	}
	keys := sc.walk.AllKeys()
	if len(keys) == 0 {
		return
	}
	deadline := r.opts.Now().Add(ttl)
	if err := r.index.Predict(s.gpu, keys, deadline); err != nil {
		r.counts.predictErrors.Add(1) // the rank was removed meanwhile
	}
}

// Prefix is what a rank has of a prompt, in tokens.
type Prefix struct {
	Rank  int32
	Match policy.Match
}

// Prefixes appends what each rank of a model has of a prompt to dst. Errors are those of [Router.Route].
func (r *Router) Prefixes(model string, tokens []uint32, scope connector.Scope, dst []Prefix) ([]Prefix, error) {
	to, err := r.find(model)
	if err != nil {
		return dst, err
	}
	if len(tokens) > r.opts.MaxPromptTokens {
		return dst, fmt.Errorf("%w: %d tokens, at most %d", ErrPromptTooLong, len(tokens), r.opts.MaxPromptTokens)
	}
	if scope.LoRA == "" {
		scope.LoRA = to.lora
	}
	s := r.take()
	defer r.give(s)
	v := to.pool.view.Load()
	r.walk(s, to.pool, v, tokens, scope)
	matches := appendMatches(nil, s.results, to.pool.blockSize)
	for i := range matches {
		dst = append(dst, Prefix{Rank: v.states[i].id, Match: matches[i]})
	}
	return dst, nil
}

// sleep waits; it reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
