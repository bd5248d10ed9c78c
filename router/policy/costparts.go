package policy

import (
	"math"
	"slices"
)

// costTaken is what a rank's GPU took in of late, in tokens.
type costTaken struct {
	id     int32
	tokens float64
}

// What a GPU took in counts less and less with the requests that were placed since, by half after some four for each
// rank. How many of these tokens come back is the same everywhere, and counted over five times as many.
const (
	takenRequests    = 6
	returnedRequests = 32
)

// align lets p.taken have an entry for each rank, new ones like the mean, and finds the mean and the part that comes back.
func (p *Cost) align(s *State) {
	same := len(p.taken) == len(s.Ranks)
	for i := 0; same && i < len(s.Ranks); i++ {
		same = p.taken[i].id == s.Ranks[i].ID
	}
	if !same {
		before := p.taken
		p.taken = make([]costTaken, len(s.Ranks))
		for i := range p.taken {
			p.taken[i] = costTaken{id: s.Ranks[i].ID, tokens: p.mean}
			if at := slices.IndexFunc(before, func(b costTaken) bool { return b.id == p.taken[i].id }); at >= 0 {
				p.taken[i].tokens = before[at].tokens
			}
		}
	}
	sum, ready := 0.0, 0
	for i := range s.Ranks {
		if s.Ranks[i].Ready {
			sum += p.taken[i].tokens
			ready++
		}
	}
	p.mean = sum / float64(max(ready, 1))
	p.overMean, p.back = 0, 0
	if positive(p.mean) { // where no prompt brings anything new for long, it fades away
		p.overMean = 1 / p.mean
	}
	if positive(p.inserted) {
		p.back = min(p.returned/p.inserted, 1)
	}
}

// learn notes what a request that was placed on the i-th rank puts into its GPU, and the part of it that some GPU had before.
func (p *Cost) learn(r *Request, i int) {
	if len(r.Match) == 0 {
		return
	}
	tokens, inGPU, usable := int32(r.Tokens), int32(0), int32(0)
	for at := range r.Match {
		inGPU, usable = max(inGPU, r.Match[at].GPU), max(usable, r.Match[at].Usable)
	}
	put := float64(max(tokens-r.Match[i].GPU, 0))
	ranks := float64(len(p.taken))
	keep := 1 - 1/times(returnedRequests, ranks)
	p.inserted = times(p.inserted, keep) + put
	p.returned = times(p.returned, keep) + float64(max(min(usable, tokens)-inGPU, 0))
	keep = 1 - 1/times(takenRequests, ranks)
	for at := range p.taken {
		if p.overMean == 0 { // the first one must not make its rank look worse than all others
			p.taken[at].tokens = float64(r.Tokens)
		}
		p.taken[at].tokens = times(p.taken[at].tokens, keep)
	}
	p.taken[i].tokens += put
}

// parts sets c to the cost of a request on the i-th rank.
func (p *Cost) parts(s *State, r *Request, i int, c *costParts) {
	w := &p.work[i]
	n, m := &p.nodes[w.node], &p.none
	if i < len(r.Match) {
		m = &r.Match[i]
	}
	*c = costParts{queue: w.queue}
	c.use, c.load, c.prefill = w.use, w.load, w.rest
	own, least := p.keeps(w), min(p.least, p.keeps(w))
	// Each second of work delays all that come until the queue is gone, and on average half of it those that come while it lasts.
	// What any rank would have to do for the request has the rank's own queue, so that it goes where fewer wait.
	c.delay = times(n.wait, times(own-least, n.queue)+times(least, w.queue)+times(own, own)/2)
	if p.opts.OverlapLoads {
		c.load = max(c.load-c.queue, 0)
	}
	if c.use > m.GPU && m.LoadDisk > 0 && !math.IsInf(w.disk, 1) {
		alone := times(float64(min(m.LoadDisk, c.use-m.GPU)), w.disk)
		c.delay += p.others(w, alone)
		c.delay += times(alone, n.price)
	}
	// How fast blocks are pushed out of this GPU, compared with others.
	pressure := 1.0
	if p.overMean > 0 {
		pressure = times(p.taken[i].tokens, p.overMean)
	}
	if p.back > 0 {
		c.memory = times(times(times(p.back, min(w.prefill, w.disk)), float64(max(int32(r.Tokens)-m.GPU, 0))), pressure)
	}
	if p.decode > 0 {
		c.decode = times(times(p.opts.DecodeWeight, own), float64(s.Ranks[i].Load.DecodeBlocks)/p.decode)
	}
	c.balance = times(times(p.opts.BalanceWeight, times(p.fresh, w.prefill)), max(pressure-1, 0))
}

// cuts finds for each rank which part of the prefix it best loads, and the least time that the request keeps a rank that
// takes it.
func (p *Cost) cuts(s *State, r *Request) {
	p.least = math.Inf(1)
	for i := range s.Ranks {
		w := &p.work[i]
		w.use, w.load, w.rest = p.cut(s, r, i)
		if s.Holds(i, r.Tokens) {
			p.least = min(p.least, p.keeps(w))
		}
	}
}

// keeps is how long the request keeps a rank from others.
func (p *Cost) keeps(w *costRank) float64 {
	if p.opts.OverlapLoads {
		return w.rest
	}
	return w.rest + w.load
}

// cut returns how much of the prefix the i-th rank best serves a request with, and the seconds to load it
// and to compute the rest. What is in the GPU is used in any case. Between the cuts tried both times are
// linear, so no other is better.
func (p *Cost) cut(s *State, r *Request, i int) (use int32, load, prefill float64) {
	if len(r.Match) == 0 {
		return 0, 0, times(float64(r.Tokens), p.work[i].prefill)
	}
	m, w, tokens := &r.Match[i], &p.work[i], int32(r.Tokens)
	use = min(m.GPU, tokens)
	prefill = times(float64(tokens-use), w.prefill)
	if m.Usable <= m.GPU && m.Disk|m.Object == 0 {
		return use, 0, prefill
	}
	cuts := [...][3]int32{{m.GPU + m.Disk, m.Disk, 0}, {m.GPU + m.Disk + m.Object, m.Disk, m.Object}, {m.Usable, m.LoadDisk, m.LoadObject}}
	for at := range cuts {
		to := min(cuts[at][0], tokens)
		if to <= use {
			continue
		}
		l := p.loadSeconds(w, &s.Ranks[i].Speeds, cuts[at][1], cuts[at][2])
		if c := times(float64(tokens-to), w.prefill); l+c < load+prefill || p.opts.AlwaysLoad && !math.IsInf(l, 1) {
			use, load, prefill = to, l, c
		}
	}
	return use, load, prefill
}

// loadSeconds returns the time to load n tokens from each tier to a rank, beside the loads of other ranks.
func (p *Cost) loadSeconds(w *costRank, v *Speeds, disk, object int32) float64 {
	t := 0.0
	if disk > 0 {
		alone := times(float64(disk), w.disk)
		t += alone + p.others(w, alone) + v.DiskDelay
	}
	if object > 0 {
		t += times(float64(object), w.object) + v.ObjectDelay
	}
	return t
}
