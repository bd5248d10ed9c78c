package policy

import (
	"math"
	"slices"

	"github.com/kvconn/kvconn/router/inflight"
)

// costState is what cost makes of a state, before it looks at a request's prefix on each rank.
type costState struct {
	work   []costRank
	nodes  []costNode
	decode float64 // most decode blocks of a ready rank
	fresh  float64 // tokens of the request that no rank has on any tier
}

// costRank is what cost makes of a rank.
type costRank struct {
	prefill  float64 // seconds a token
	disk     float64 // seconds a token; infinite if nothing is loaded from there
	object   float64
	queue    float64 // seconds
	diskLeft float64 // seconds that the disk alone needs for the rank's requests
	node     int     // place in costState.nodes
	// of the request: the tokens of its prefix that it uses, and the seconds to load them and to compute the rest
	use        int32
	load, rest float64
}

// costNode is what the ranks of a node share, and their queues taken together.
type costNode struct {
	left    float64 // seconds that the disk needs for all loads
	loading float64 // ranks with loads
	busy    float64 // part of the time that the disk was busy of late
	queue   float64 // mean of the ready ranks' queues, seconds
	// price is how long loads to come wait for each second that the disk is kept busy: it is a queue M/G/1-PS, which on
	// average has busy/(1-busy) loads.
	price float64
	// wait is how long requests to come wait for each second of work that a rank takes on, and each second of queue.
	wait                           float64
	ready, requests, work, seconds float64 // sums over ready ranks
}

// mostBusy bounds how busy a disk or a rank counts: what would wait forever has no finite price.
const mostBusy = 0.95

// warmup is added to the time over which recent work is counted, in seconds. Without it the first requests of a router that
// is new would look like a flood.
const warmup = 60

// measure takes speeds, queues and rates from the state.
func (c *costState) measure(s *State, r *Request, o *CostOptions) {
	n := len(s.Ranks)
	c.work = slices.Grow(c.work[:0], n)[:n]
	c.nodes = slices.Grow(c.nodes[:0], 2*n)[:2*n]
	clear(c.nodes)
	c.decode, c.fresh = 0, float64(r.Tokens)
	speed := s.PrefillSpeed()
	for i := range s.Ranks {
		c.measureRank(s, i, 1/speed)
	}
	for i := range r.Match {
		c.fresh = min(c.fresh, float64(max(int32(r.Tokens)-r.Match[i].Usable, 0)))
	}
	for i := range s.Ranks {
		l, w := &s.Ranks[i].Load, &c.work[i]
		w.queue = c.queueOf(l, w, o)
		if s.Ranks[i].Ready {
			c.count(l, w, o)
		}
	}
	for i := range c.nodes {
		at := &c.nodes[i]
		if at.busy > 0 {
			idle := 1 - min(at.busy, mostBusy)
			at.price = (1 - idle) / times(idle, idle)
		}
	}
	c.priceWork()
}

// priceWork finds what work on the ranks of each node delays: those that come to the node while its queue lasts, since its ranks
// take over each other's sessions. A fleet that has a queue on every node has nowhere else to send them: the closer the shortest
// queue is to the mean, the more work counts by the queue and the rates of all, so that a shorter queue is no reason to do more of it.
func (c *costState) priceWork() {
	var all costNode
	shortest := math.Inf(1)
	for i := range c.nodes {
		at := &c.nodes[i]
		if at.ready == 0 {
			continue
		}
		all.ready, all.queue = all.ready+at.ready, all.queue+at.queue
		all.requests, all.work, all.seconds = all.requests+at.requests, all.work+at.work, all.seconds+at.seconds
		at.queue /= at.ready
		at.wait = at.delayed()
		shortest = min(shortest, at.queue)
	}
	all.queue /= max(all.ready, 1)
	if !positive(all.queue) || !positive(shortest) {
		return
	}
	all.wait = all.delayed()
	everywhere := min(math.Sqrt(shortest/all.queue), 1)
	for i := range c.nodes {
		at := &c.nodes[i]
		at.queue += times(everywhere, all.queue-at.queue)
		at.wait += times(everywhere, all.wait-at.wait)
	}
}

// delayed is how many requests come while a second of work is served, with all that comes meanwhile.
func (n *costNode) delayed() float64 {
	return n.requests / n.seconds / (1 - min(n.work/n.seconds, mostBusy))
}

// measureRank takes what a rank's numbers alone say.
func (c *costState) measureRank(s *State, i int, prefill float64) {
	r, w := &s.Ranks[i], &c.work[i]
	if w.prefill = prefill; positive(r.Speeds.PrefillTokens) {
		w.prefill = 1 / r.Speeds.PrefillTokens
	}
	w.disk = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.DiskBytes)
	w.object = secondsPerToken(r.Speeds.BytesPerToken, r.Speeds.ObjectBytes)
	if w.node = int(r.Node); w.node < 0 || w.node >= len(s.Ranks) {
		w.node = len(s.Ranks) + i // one of its own
	}
	w.diskLeft = 0
	if !math.IsInf(w.disk, 1) {
		n := &c.nodes[w.node]
		if r.Load.RecentDiskTokens > 0 {
			n.busy += times(r.Load.RecentDiskTokens, w.disk) / (r.Load.RecentSeconds + warmup)
		}
		if r.Load.QueuedDiskTokens > 0 {
			w.diskLeft = times(float64(r.Load.QueuedDiskTokens), w.disk)
			n.left += w.diskLeft
			n.loading++
		}
	}
	if r.Ready {
		c.decode = max(c.decode, float64(r.Load.DecodeBlocks))
	}
}

// count adds a ready rank to its node.
func (c *costState) count(l *inflight.Rank, w *costRank, o *CostOptions) {
	n := &c.nodes[w.node]
	n.ready++
	n.queue += w.queue
	n.requests += l.RecentRequests
	n.seconds += l.RecentSeconds + warmup
	n.work += times(l.RecentTokens, w.prefill)
	if o.OverlapLoads {
		return
	}
	if !math.IsInf(w.disk, 1) {
		n.work += times(l.RecentDiskTokens, w.disk)
	}
	if !math.IsInf(w.object, 1) {
		n.work += times(l.RecentObjectTokens, w.object)
	}
}

// others returns how many seconds a load that takes the disk alone so long, and the loads of the node's other ranks, delay
// each other. The disk serves all at once, so that each delays another by no more than either takes.
func (c *costState) others(w *costRank, alone float64) float64 {
	n := &c.nodes[w.node]
	if n.left == 0 {
		return 0
	}
	left, loading := n.left-w.diskLeft, n.loading
	if w.diskLeft > 0 {
		loading--
	}
	return max(min(times(loading, alone), left), 0)
}

// queueOf returns the seconds until a rank has served the requests that are there before a new one. A request that takes
// longer than it should is expected to take as long again as it is late: the rank may have no memory for it, or hang. One that
// nobody may report on is not late, as it may be in decode.
func (c *costState) queueOf(l *inflight.Rank, w *costRank, o *CostOptions) float64 {
	front := c.service(l.FrontTokens, l.FrontDiskTokens, l.FrontObjectTokens, w, o)
	rest := c.service(l.QueuedTokens-l.FrontTokens, l.QueuedDiskTokens-l.FrontDiskTokens, l.QueuedObjectTokens-l.FrontObjectTokens, w, o)
	if l.QueuedRequests == 0 {
		return rest
	}
	left := front - times(float64(l.FrontAge), 1e-9)
	if l.FrontSilent {
		return max(left, 0) + rest
	}
	return math.Abs(left) + rest
}

// service returns the seconds to load and compute tokens one after the other, or to compute them if loads are no
// burden on others.
func (c *costState) service(compute, disk, object int64, w *costRank, o *CostOptions) float64 {
	t := times(float64(compute), w.prefill)
	if o.OverlapLoads {
		return t
	}
	if disk > 0 && !math.IsInf(w.disk, 1) {
		alone := times(float64(disk), w.disk)
		t += alone + c.others(w, alone)
	}
	if object > 0 && !math.IsInf(w.object, 1) {
		t += times(float64(object), w.object)
	}
	return t
}
