package policy

import (
	"math"
	"slices"
)

// LoadOptions configure the policy load.
type LoadOptions struct {
	// Multiplier is how many times the fair share of requests a rank may get. Default 1.
	Multiplier float64
	// AsPublished answers as TensorRT-LLM's router does where that is worse: a request whose strict
	// pin is full is placed elsewhere, for its own admission comes first; the tokens of pinned
	// requests do not count for the rest of the batch; and a request that finds every rank at its
	// fair share is left for the next one. Default false: the first is refused, the second count, the
	// third goes wherever there is room.
	AsPublished bool
}

// Load gives each request, the longest first, to the rank with the fewest tokens, then the fewest
// requests, then the lowest place, by a heap: TensorRT-LLM's default attention-DP router. The token
// load is of whole prompts.
type Load struct {
	opts LoadOptions
	b    batch
	heap []int32
}

// NewLoad returns the policy load.
func NewLoad(o LoadOptions) *Load {
	if !(o.Multiplier > 0) || math.IsInf(o.Multiplier, 1) {
		o.Multiplier = 1
	}
	return &Load{opts: o, b: batch{asPublished: o.AsPublished}}
}

// Name returns "load".
func (*Load) Name() string { return "load" }

// Route places reqs.
func (p *Load) Route(s *State, reqs []Request, out []Decision) {
	b := &p.b
	defer b.end()
	if !b.begin(s, reqs, out) {
		return
	}
	b.strictFirst()
	b.keep(func(q int32) bool { return !b.placePinned(q) })
	if p.opts.AsPublished {
		b.resetTokens()
	}
	p.balance(b.fairCap(p.opts.Multiplier, len(b.order)))
}

// balance places the requests in order on ranks below limit requests.
func (p *Load) balance(limit int) {
	b := &p.b
	slices.SortStableFunc(b.order, func(x, y int32) int { return b.reqs[y].Tokens - b.reqs[x].Tokens })
	p.fill(limit)
	for _, q := range b.order {
		i := p.pick(b.reqs[q].Tokens)
		if i < 0 && !p.opts.AsPublished && limit < unlimited {
			limit = unlimited
			p.fill(limit)
			i = p.pick(b.reqs[q].Tokens)
		}
		if b.reqs[q].Explain {
			for r := range b.s.Ranks {
				b.score(q, r, b.active[r] < limit && b.holds(r, b.reqs[q].Tokens), b.tokens[r])
			}
		}
		if i < 0 {
			b.refuse(q, ReasonFairShare)
			continue
		}
		b.place(q, i, ReasonScore, b.hit(q, i))
		p.fix(i, limit)
	}
}

// fill makes the heap of the ranks below limit requests.
func (p *Load) fill(limit int) {
	p.heap = p.heap[:0]
	for i := range p.b.s.Ranks {
		if p.b.active[i] < limit && p.b.holds(i, 0) {
			p.heap = append(p.heap, int32(i))
		}
	}
	for at := len(p.heap)/2 - 1; at >= 0; at-- {
		p.sift(at)
	}
}

// fix moves a rank to where it belongs after a placement, or out.
func (p *Load) fix(i, limit int) {
	at := slices.Index(p.heap, int32(i))
	if p.b.active[i] >= limit || !p.b.holds(i, 0) {
		last := len(p.heap) - 1
		p.heap[at] = p.heap[last]
		p.heap = p.heap[:last]
	}
	if at < len(p.heap) {
		p.up(p.sift(at))
	}
}

// pick returns the first rank of the heap, or the best one behind it if that has no room for so many
// tokens; -1 if none has.
func (p *Load) pick(promptTokens int) int {
	if len(p.heap) > 0 && p.b.holds(int(p.heap[0]), promptTokens) {
		return int(p.heap[0])
	}
	best := -1
	for _, i := range p.heap {
		if p.b.holds(int(i), promptTokens) && (best < 0 || p.less(i, int32(best))) {
			best = int(i)
		}
	}
	return best
}

func (p *Load) less(x, y int32) bool {
	b := &p.b
	switch {
	case b.tokens[x] != b.tokens[y]:
		return b.tokens[x] < b.tokens[y]
	case b.active[x] != b.active[y]:
		return b.active[x] < b.active[y]
	}
	return x < y
}

// sift moves the entry at down to where it belongs and returns where that is.
func (p *Load) sift(at int) int {
	h := p.heap
	for {
		child := 2*at + 1
		if child >= len(h) {
			return at
		}
		if child+1 < len(h) && p.less(h[child+1], h[child]) {
			child++
		}
		if !p.less(h[child], h[at]) {
			return at
		}
		h[at], h[child] = h[child], h[at]
		at = child
	}
}

// up moves the entry at up to where it belongs.
func (p *Load) up(at int) {
	h := p.heap
	for at > 0 && p.less(h[at], h[(at-1)/2]) {
		h[at], h[(at-1)/2] = h[(at-1)/2], h[at]
		at = (at - 1) / 2
	}
}
