package route

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
)

// job is a request on its way to a decision.
type job struct {
	to      target
	req     *Request
	id      uint64
	tokens  int
	explain bool
	s       *scratch
	d       *Decision
	err     error
}

// Route decides where a request goes, books it there and predicts its blocks there. The answer is in d; if no rank
// takes the request, d says why: see policy.Decision. The request counts as load until [Router.Finish].
//
// Errors wrap [ErrUnknownModel], [ErrPromptTooLong], [ErrBusy], or are those of ctx.
func (r *Router) Route(ctx context.Context, req *Request, d *Decision) error {
	j := job{req: req, d: d}
	if r.begin(ctx, &j) {
		jobs := [1]*job{&j}
		r.decide(jobs[:])
	}
	return j.err
}

// RouteAll decides several requests: out[i] and the i-th error are of reqs[i], as those of [Router.Route].
// A policy.Batcher gets all requests of a model at once, except that one that excludes ranks is placed by itself
// after them. Any other policy decides one after the other, each counting for those after it: first the
// requests with a strict pin, as no other rank will do for them, then the rest in the order given. The first request
// that asks for scores gets them, the others as long as all have 16,384 scores at most.
func (r *Router) RouteAll(ctx context.Context, reqs []Request, out []Decision) []error {
	jobs, open := make([]job, len(reqs)), make([]*job, 0, len(reqs))
	scores := 0
	for i := range reqs {
		j := &jobs[i]
		*j = job{req: &reqs[i], d: &out[i]}
		if !r.begin(ctx, j) {
			continue
		}
		open = append(open, j)
		if ranks := len(j.to.pool.view.Load().states); scores > 0 && scores+ranks > maxScores {
			j.explain = false
		} else if j.explain {
			scores += ranks
		}
	}
	slices.SortStableFunc(open, func(a, b *job) int {
		return cmp.Or(strings.Compare(a.d.Model, b.d.Model), a.turn()-b.turn())
	})
	for len(open) > 0 {
		n := together(open)
		r.decide(open[:n])
		open = open[n:]
	}
	errs := make([]error, len(reqs))
	for i := range jobs {
		errs[i] = jobs[i].err
	}
	return errs
}

// maxScores bounds the scores of requests that are decided together, to about 6 MB of JSON.
const maxScores = 16384

// turn orders the requests of one model.
func (j *job) turn() int {
	_, batches := j.to.pool.policy.(policy.Batcher)
	switch {
	case batches && len(j.req.Exclude) > 0:
		return 2
	case !batches && j.req.Strict && j.req.Pin != policy.NoPin:
		return 0
	}
	return 1
}

// together returns how many of the first jobs are decided at once.
func together(jobs []*job) int {
	p := jobs[0].to.pool
	n := 1
	if _, batches := p.policy.(policy.Batcher); batches && jobs[0].turn() == 1 {
		for n < len(jobs) && jobs[n].to.pool == p && jobs[n].turn() == 1 {
			n++
		}
	}
	return n
}

// begin empties the decision and finds the ranks of the request. It reports whether that worked; if not, j has
// the error.
func (r *Router) begin(ctx context.Context, j *job) bool {
	j.d.reset()
	if j.err = ctx.Err(); j.err != nil {
		return false
	}
	if j.to, j.err = r.find(j.req.Model); j.err != nil {
		return false
	}
	if j.tokens = j.req.Tokens; j.req.Prompt != nil {
		j.tokens = len(j.req.Prompt)
	}
	if j.tokens < 0 || j.tokens > r.opts.MaxPromptTokens {
		j.err = fmt.Errorf("%w: %d tokens, at most %d", ErrPromptTooLong, j.tokens, r.opts.MaxPromptTokens)
		return false
	}
	j.id, j.explain = r.ids.Add(1), j.req.Explain
	j.d.Model, j.d.PromptTokens = j.to.pool.model, j.tokens
	return true
}

func (r *Router) find(model string) (target, error) {
	models := *r.models.Load()
	if to, ok := models[model]; ok {
		return to, nil
	}
	if name, adapter, ok := strings.Cut(model, ":"); ok && adapter != "" { // SGLang's way to name an adapter
		if to, ok := models[name]; ok && to.pool.scheme == blockkey.SGLang && to.lora == "" {
			return target{pool: to.pool, lora: adapter}, nil
		}
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

// rootCache keeps the root of the last scope: a tenant's requests come in bursts.
type rootCache struct {
	scope     connector.Scope
	scheme    blockkey.Scheme
	blockSize int
	root      blockkey.Link
}

func (c *rootCache) of(p *pool, v *view, scope connector.Scope) blockkey.Link {
	if scope == (connector.Scope{}) {
		return v.root
	}
	if c.scope != scope || c.scheme != p.scheme || c.blockSize != v.blockSize {
		c.scope, c.scheme, c.blockSize = scope, p.scheme, v.blockSize
		c.root = p.scheme.Root(v.blockSize, scope)
	}
	return c.root
}

// walk finds every rank's prefix. A prompt of a scope other than the plain one is announced to the stores'
// feeds first, unless records of all scopes begin at one root, as SGLang's do. What stores have under an adapter's content is
// looked for by that.
func (r *Router) walk(s *scratch, to target, v *view, prompt []uint32, scope connector.Scope, dst []policy.Match) []policy.Match {
	if scope.LoRA == "" {
		scope.LoRA = to.lora
	}
	p := to.pool
	root := s.root.of(p, v, scope)
	named := p.scheme == blockkey.Tokens && scope.LoRA != "" && s.stored.name(v, scope.LoRA)
	if root != v.root && p.scheme == blockkey.Tokens && !named {
		v.noteRoot(root)
	}
	s.results = slices.Grow(s.results[:0], len(v.states))[:len(v.states)]
	r.index.WalkTokens(v.ranks, root, prompt, v.blockSize, &s.walk, s.results)
	if named {
		r.walkStored(&s.stored, p, v, prompt, scope, s.results)
	}
	return appendMatches(dst, s.results, v.blockSize)
}

// decide decides jobs of one pool: several together if the policy places batches, else one.
func (r *Router) decide(jobs []*job) {
	for _, j := range jobs {
		j.s = r.scratches.Get().(*scratch)
	}
	for !r.tryDecide(jobs) { // a rank came or went meanwhile
	}
	for _, j := range jobs {
		if j.err == nil {
			r.counts.add(j.d)
		}
		r.scratches.Put(j.s)
	}
}

// tryDecide reports whether the ranks stayed the same meanwhile; else nothing is decided.
func (r *Router) tryDecide(jobs []*job) bool {
	p := jobs[0].to.pool
	v := p.view.Load()
	for _, j := range jobs {
		j.d.matches = r.walk(j.s, j.to, v, j.req.Prompt, j.req.Scope, j.d.matches[:0])
		leaveLastToken(j.d.matches, j.tokens, v.blockSize)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.view.Load() != v {
		return false
	}
	p.place(v, jobs)
	for _, j := range jobs {
		if !j.d.Placed() {
			continue
		}
		e, err := r.book(v, j)
		if j.err = err; err != nil {
			j.d.reset()
			continue
		}
		// Under the lock: a rank that is removed meanwhile leaves its number to another.
		e.spot, e.extend = r.predict(v, j, e.placed)
		r.flights.add(j.id, e)
	}
	return true
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

// leaveLastToken takes the block with the prompt's last token out of matches: every engine computes that
// block, whoever holds it (vLLM, SGLang and TensorRT-LLM look up all tokens but the last).
func leaveLastToken(matches []policy.Match, tokens, blockSize int) {
	if tokens == 0 || tokens%blockSize != 0 {
		return
	}
	limit := int32(tokens - blockSize)
	for i := range matches {
		m := &matches[i]
		// What follows the GPU's prefix goes first. Which tier of several has the last block is not known:
		// the slowest is assumed.
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

// sharedBlocks is how many of a prompt's first blocks are counted once on each rank with Options.Load.AssumeKVReuse:
// each costs tens of nanoseconds when a request is placed.
const sharedBlocks = 1024

// book counts a placed request as load. The caller holds the pool's mu.
func (r *Router) book(v *view, j *job) (e flight, err error) {
	d, p, state := j.d, j.to.pool, v.states[j.d.Index]
	spec := state.spec.Load()
	d.Handle, d.Match = j.id, d.matches[d.Index]
	d.Endpoint, d.Header, d.Engine = spec.Endpoint, spec.HeaderValue(), spec.Engine
	booking := inflight.Request{
		ID: j.id, Rank: d.Rank, PromptTokens: j.tokens,
		CachedTokens: int(d.UseTokens), DiskTokens: int(d.LoadDisk), ObjectTokens: int(d.LoadObject),
		Silent: j.req.Silent || j.req.MaybeSilent,
	}
	if r.opts.Load.AssumeKVReuse && j.req.Prompt != nil {
		keys := j.s.walk.Keys()
		booking.Keys = keys[:min(len(keys), sharedBlocks)]
	}
	if err := p.tracker.Add(booking); err != nil {
		return e, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	now := r.opts.Now()
	e = flight{pool: p, rank: state, placed: now, heard: now}
	if p.loads[d.Index].QueuedRequests == 0 && d.LoadDisk|d.LoadObject == 0 && j.req.Prompt != nil {
		e.compute = int32(j.tokens) - d.UseTokens
	}
	if j.req.Silent {
		e.assume = p.assumed(d, now)
	}
	p.loads[d.Index].Place(j.tokens, int(d.UseTokens), int(d.LoadDisk), int(d.LoadObject), v.blockSize) // for the rest of a batch
	return e, nil
}

// predict notes that a rank is going to have the prompt's blocks, unless it has them by its events or another prediction. The
// caller holds the pool's mu. It returns where the prompt ends, and when its prediction is to be extended if it still waits then, in
// Unix nanoseconds: see [Router.extendPredictions].
func (r *Router) predict(v *view, j *job, now time.Time) (end prefix.Spot, extend int64) {
	state := v.states[j.d.Index]
	if state.events != nil && int(j.s.results[j.d.Index].GPU) == len(j.req.Prompt)/v.blockSize {
		return j.s.walk.End(), now.UnixNano()
	}
	if keys := j.s.walk.AllKeys(); len(keys) > 0 {
		ttl := r.predictTTL(state)
		end, _ = r.index.Predict(state.gpu, keys, now.Add(ttl)) // fails only if the rank was removed meanwhile
		extend = now.Add(ttl / 2).UnixNano()
	}
	return end, extend
}

// predictTTL is how long a prediction for a rank lasts.
func (r *Router) predictTTL(s *rankState) time.Duration {
	if s.events == nil {
		return r.opts.ApproximateTTL
	}
	return r.opts.PredictTTL
}

// Prefix is what a rank has of a prompt, in tokens, with the JSON names of the HTTP interface.
type Prefix struct {
	Rank  int32        `json:"rank"`
	Match policy.Match `json:"prefix"`
}

// Prefixes returns what each rank of a model has of a prompt. Errors are those of [Router.Route].
func (r *Router) Prefixes(model string, prompt []uint32, scope connector.Scope) ([]Prefix, error) {
	to, err := r.find(model)
	if err != nil {
		return nil, err
	}
	if len(prompt) > r.opts.MaxPromptTokens {
		return nil, fmt.Errorf("%w: %d tokens, at most %d", ErrPromptTooLong, len(prompt), r.opts.MaxPromptTokens)
	}
	s := r.scratches.Get().(*scratch)
	defer r.scratches.Put(s)
	v := to.pool.view.Load()
	list := make([]Prefix, len(v.states))
	for i, m := range r.walk(s, to, v, prompt, scope, nil) {
		list[i] = Prefix{Rank: v.states[i].id, Match: m}
	}
	return list, nil
}
