package policy

// split hands part of a batch to another policy, which sees the placements made so far as load.
type split struct {
	state State
	reqs  []Request
	out   []Decision
	rest  []int32
}

// routeStrict lets p decide the requests of b with a strict pin that are p's, before all others: no other
// rank will do for them. The rest stay in order.
func (sp *split) routeStrict(p Policy, b *batch, isItsOwn func(q int32) bool) {
	sp.rest = sp.rest[:0]
	strict := b.order[:0]
	for _, q := range b.order {
		if b.reqs[q].urgency() == 0 && isItsOwn(q) {
			strict = append(strict, q)
		} else {
			sp.rest = append(sp.rest, q)
		}
	}
	b.order = strict
	sp.route(p, b)
	for _, q := range strict {
		if d := &b.out[q]; d.Placed() {
			b.active[d.Index]++
			b.held[d.Index] += int64(b.reqs[q].Tokens)
			b.tokens[d.Index] += float64(b.reqs[q].Tokens)
		}
	}
	b.order = append(b.order[:0], sp.rest...)
}

// route lets p decide the requests of b in order.
func (sp *split) route(p Policy, b *batch) {
	if len(b.order) == 0 {
		return
	}
	sp.state.BlockSize = b.s.BlockSize
	sp.state.Ranks = append(sp.state.Ranks[:0], b.s.Ranks...)
	for q := range b.out[:len(b.reqs)] {
		if d := &b.out[q]; d.Placed() {
			sp.state.Ranks[d.Index].Load.Place(b.reqs[q].Tokens, int(d.UseTokens), int(d.LoadDisk), int(d.LoadObject), b.s.blockSize())
		}
	}
	sp.reqs = sp.reqs[:0]
	sp.out = sp.out[:0]
	for _, q := range b.order {
		sp.reqs = append(sp.reqs, b.reqs[q])
		sp.out = append(sp.out, b.out[q])
	}
	p.Route(&sp.state, sp.reqs, sp.out)
	for at, q := range b.order {
		b.out[q] = sp.out[at]
	}
	clear(sp.reqs)
	clear(sp.out)
}
