package policy

import "math"

// ServeKVAwareOptions configure the policy serve-kv-aware.
type ServeKVAwareOptions struct {
	// LoadWeight is what an active request takes off the score, in blocks. Default 0.25; negative
	// means 0.
	LoadWeight float64
	// LoadCap is the part of a rank's requests that may be taken for it to be a candidate as long as
	// another one is. 0 means no cap.
	LoadCap float64
	// MaxBatchSize is the number of requests that LoadCap is a part of. Default 64.
	MaxBatchSize int
	// MaxContents bounds the contents remembered. Default 65,536.
	MaxContents int
}

// EnsureDefaults fills in what is not set.
func (o *ServeKVAwareOptions) EnsureDefaults() {
	o.LoadWeight = orDefault(o.LoadWeight, 0.25)
	if o.MaxBatchSize <= 0 {
		o.MaxBatchSize = 64
	}
	if o.MaxContents <= 0 || o.MaxContents > math.MaxInt32 {
		o.MaxContents = 65536
	}
	if !(o.LoadCap > 0) {
		o.LoadCap = 0
	}
}

// ServeKVAware is the router in front of TensorRT-LLM's servers: the highest
//
//	matched tokens / block size - load weight * active requests
//
// among the ranks below the load cap, or all if none is; ties in turn. A rank that was given requests
// of equal content before goes first while it is a candidate.
type ServeKVAware struct {
	opts   ServeKVAwareOptions
	b      batch
	pins   homes
	turn   int
	below  []bool
	totals []float64
}

// NewServeKVAware returns the policy serve-kv-aware.
func NewServeKVAware(o ServeKVAwareOptions) *ServeKVAware {
	o.EnsureDefaults()
	return &ServeKVAware{opts: o, pins: newHomes(o.MaxContents)}
}

// Name returns "serve-kv-aware".
func (*ServeKVAware) Name() string { return "serve-kv-aware" }

// Route places reqs.
func (p *ServeKVAware) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	p.below = resize(p.below, len(s.Ranks))
	p.totals = resize(p.totals, len(s.Ranks))
	b.strictFirst()
	for _, q := range b.order {
		if !b.placePinned(q) {
			p.decide(q)
		}
	}
}

// candidates marks the ranks that may be chosen for request q and returns how many they are.
func (p *ServeKVAware) candidates(q int32) int {
	b := &p.b
	limit := math.Inf(1)
	if p.opts.LoadCap > 0 {
		limit = times(p.opts.LoadCap, float64(p.opts.MaxBatchSize))
	}
	for {
		n := 0
		for i := range b.s.Ranks {
			p.below[i] = float64(b.active[i]) < limit && b.holds(i, b.reqs[q].Tokens)
			if p.below[i] {
				n++
			}
		}
		if n > 0 || math.IsInf(limit, 1) {
			return n
		}
		limit = math.Inf(1)
	}
}

func (p *ServeKVAware) decide(q int32) {
	b := &p.b
	req := &b.reqs[q]
	if p.candidates(q) == 0 {
		b.refuse(q, ReasonAllFull)
		return
	}
	best, ties := -1, 0
	for i := range b.s.Ranks {
		p.totals[i] = float64(b.hit(q, i))/float64(b.s.blockSize()) - float64(p.opts.LoadWeight*float64(b.active[i]))
		switch {
		case !p.below[i]:
		case best < 0 || p.totals[i] > p.totals[best]:
			best, ties = i, 1
		case p.totals[i] == p.totals[best]:
			ties++
		}
	}
	chosen, why := p.tied(best, ties), ReasonScore
	if id, ok := p.pins.get(req.Content); ok && req.Content != "" {
		if i := b.index(id); i >= 0 && p.below[i] {
			chosen, why = i, ReasonContent
		}
	}
	p.turn++
	if req.Content != "" {
		p.pins.set(req.Content, b.s.Ranks[chosen].ID)
	}
	if req.Explain {
		for i := range b.s.Ranks {
			b.score(q, i, p.below[i], p.totals[i]).MatchTokens = b.hit(q, i)
		}
	}
	b.place(q, chosen, why, b.hit(q, chosen))
}

// tied returns the one in turn of the candidates that are as good as best.
func (p *ServeKVAware) tied(best, ties int) int {
	k := p.turn % ties
	for i := best; ; i++ {
		if p.below[i] && p.totals[i] == p.totals[best] {
			if k == 0 {
				return i
			}
			k--
		}
	}
}
