package route

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/registry"
)

// Add registers ranks and begins to follow their events and their nodes' stores. It stops at the first rank that
// cannot be registered; the ranks before it are registered. Errors wrap [ErrRankExists], [ErrTooManyRanks],
// [ErrMismatch] or [ErrClosed], or say what is wrong with the rank.
func (r *Router) Add(specs ...registry.Rank) error {
	r.admin.Lock()
	defer r.admin.Unlock()
	return r.add(specs)
}

// add is Add; the caller holds admin.
func (r *Router) add(specs []registry.Rank) (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	touched := make(map[*pool]bool)
	for i := range specs {
		spec := specs[i]
		spec.EnsureDefaults()
		if err = spec.Validate(); err != nil {
			break
		}
		var p *pool
		if p, err = r.register(&spec); err != nil {
			err = fmt.Errorf("add rank %d: %w", spec.ID, err)
			break
		}
		touched[p] = true
		r.opts.Logger.Info("rank added", "rank", spec.ID, "model", spec.Model, "endpoint", spec.Endpoint, "dp_mode", spec.DPMode,
			"dp_rank", spec.DPRank, "events", spec.Events != nil, "node", spec.Node)
	}
	for p := range touched {
		err = errors.Join(err, r.refresh(p))
	}
	return err
}

// register takes a rank in and follows its feeds. Decisions see it with the next refresh of its pool. The
// caller holds mu.
func (r *Router) register(spec *registry.Rank) (*pool, error) {
	p, err := r.check(spec)
	if err != nil {
		return nil, err
	}
	s := &rankState{id: spec.ID, pool: p}
	s.spec.Store(spec)
	s.setReady(r.opts.AssumeReady, "not checked yet")
	if s.gpu, err = r.index.AddHolder(spec.HashDomain); err != nil {
		return nil, err
	}
	if err = r.follow(s, spec); err == nil {
		err = p.tracker.AddRank(s.id)
	}
	if err != nil {
		r.unfollow(s)
		return nil, err
	}
	r.warnTwin(spec)
	r.pools[p.model] = p
	r.ranks[s.id] = s
	return p, nil
}

// warnTwin says if another rank is the same one of the same engine: its load would be halved. The caller holds mu.
func (r *Router) warnTwin(spec *registry.Rank) {
	for _, other := range r.ranks {
		if o := other.spec.Load(); o.Endpoint == spec.Endpoint && o.Model == spec.Model && o.DPMode == spec.DPMode && o.DPRank == spec.DPRank {
			r.opts.Logger.Warn("two ranks are the same one of the same engine: the router counts the load of each alone",
				"rank", spec.ID, "other", other.id, "endpoint", spec.Endpoint, "dp_rank", spec.DPRank,
				"remedy", "remove one, or give them the engine's dp_mode and dp_rank")
			return
		}
	}
}

// check reports what keeps a rank from being registered, else its pool. The caller holds mu.
func (r *Router) check(spec *registry.Rank) (*pool, error) {
	switch {
	case r.closed:
		return nil, ErrClosed
	case r.ranks[spec.ID] != nil:
		return nil, ErrRankExists
	case len(r.ranks) >= r.opts.MaxRanks:
		return nil, fmt.Errorf("%w: %d", ErrTooManyRanks, len(r.ranks))
	}
	for _, other := range r.ranks {
		if err := fit(spec, other.spec.Load()); err != nil {
			return nil, err
		}
	}
	if p := r.pools[spec.Model]; p != nil {
		return p, nil
	}
	return r.newPool(spec)
}

// fit reports what keeps a rank from being beside another one. Ranks of a model have equal blocks, and a name stands for
// one model.
func fit(a, b *registry.Rank) error {
	switch {
	case a.Model == b.Model && a.Engine.Scheme() != b.Engine.Scheme():
		return fmt.Errorf("%w: engine %q, other ranks of %s are of another: all or none are SGLang's", ErrMismatch, a.Engine, a.Model)
	case a.Model == b.Model && a.BlockSize != b.BlockSize && a.BlockSize*b.BlockSize != 0:
		return fmt.Errorf("%w: block_size %d, other ranks of %s have %d", ErrMismatch, a.BlockSize, a.Model, b.BlockSize)
	case a.Model == b.Model:
		return nil
	}
	taken := func(name string) bool { return name == b.Model || slices.Contains(b.Adapters, name) }
	if taken(a.Model) {
		return fmt.Errorf("%w: %s is %s's on rank %d", ErrMismatch, a.Model, b.Model, b.ID)
	}
	if i := slices.IndexFunc(a.Adapters, taken); i >= 0 {
		return fmt.Errorf("%w: %s is %s's on rank %d", ErrMismatch, a.Adapters[i], b.Model, b.ID)
	}
	return nil
}

// EngineRank finds the rank that a request for a model means by SGLang's own number in its body. taken is false if the
// model is unknown or another engine's, ranks is how many ranks have the number; rank is one of them.
func (r *Router) EngineRank(model string, number int) (rank int32, ranks int, taken bool) {
	to, err := r.find(model)
	if err != nil || to.pool.scheme != blockkey.SGLang {
		return 0, 0, false
	}
	for _, s := range to.pool.view.Load().states {
		if s.spec.Load().DPRank == number {
			rank = s.id
			ranks++
		}
	}
	return rank, ranks, true
}

// TakesAdapter reports whether requests for a model may name an adapter beside it, as SGLang's do.
func (r *Router) TakesAdapter(model string) bool {
	to, err := r.find(model)
	return err == nil && to.pool.scheme == blockkey.SGLang && to.lora == ""
}

// refresh makes the present ranks of a pool what decisions are made by. The caller holds mu.
func (r *Router) refresh(p *pool) error {
	states := slices.DeleteFunc(r.sorted(), func(s *rankState) bool { return s.pool != p })
	given := 0
	for _, s := range states { // those that give one give the same
		given = max(given, s.spec.Load().BlockSize)
	}
	p.size.Give(given)
	v, err := p.newView(states)
	if err != nil {
		return err
	}
	if old := p.view.Load(); old != nil && old.blockSize != v.blockSize {
		for _, s := range states {
			if s.events == nil { // what was assumed to be there has keys of the other size
				r.index.Clear(s.gpu)
			}
		}
	}
	p.show(v)
	if len(states) == 0 {
		delete(r.pools, p.model)
	}
	models := make(map[string]target)
	for _, s := range r.ranks {
		spec := s.spec.Load()
		models[spec.Model] = target{pool: s.pool}
		for _, name := range spec.Adapters {
			models[name] = target{pool: s.pool, lora: name}
		}
	}
	r.models.Store(&models)
	return nil
}

// Remove forgets a rank, its blocks and its requests. It returns how many requests were in flight there.
// The error is [ErrUnknownRank].
func (r *Router) Remove(id int32) (inFlight int, err error) {
	r.admin.Lock()
	defer r.admin.Unlock()
	r.mu.Lock()
	s := r.ranks[id]
	r.mu.Unlock()
	if s == nil {
		return 0, fmt.Errorf("remove rank %d: %w", id, ErrUnknownRank)
	}
	inFlight = r.remove(s)
	r.opts.Logger.Info("rank removed", "rank", id, "in_flight", inFlight)
	return inFlight, nil
}

// remove takes a rank out of decisions, then ends its feeds and forgets its blocks. The caller holds
// admin.
func (r *Router) remove(s *rankState) (inFlight int) {
	r.mu.Lock()
	delete(r.ranks, s.id)
	if err := r.refresh(s.pool); err != nil { // fewer ranks never fail
		r.opts.Logger.Error("ranks cannot be made ready for walks", "error", err)
	}
	r.mu.Unlock()
	r.release(s)
	inFlight = s.pool.tracker.RemoveRank(s.id)
	r.flights.sweep(r.opts.Now().Add(-r.opts.Load.TTL), s)
	return inFlight
}

// SetReady says whether a rank may get requests, and why not. It reports whether that is a change. If a rank
// without events ceases to be ready, a restart is assumed and its predicted blocks are forgotten.
func (r *Router) SetReady(id int32, ready bool, why string) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.ranks[id]
	if s == nil {
		return false
	}
	changed = s.setReady(ready, why)
	if changed && !ready && s.events == nil {
		r.index.Clear(s.gpu)
	}
	return changed
}

func (r *rankState) setReady(ready bool, why string) (changed bool) {
	if ready {
		why = ""
	}
	if old := r.why.Load(); old == nil || *old != why {
		text := why
		r.why.Store(&text)
	}
	return r.ready.Swap(ready) != ready
}
