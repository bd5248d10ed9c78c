package policy

// split hands part of a batch to another policy, which sees the placements made so far as load.
type split struct {
	state State
	reqs  []Request
	out   []Decision
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
