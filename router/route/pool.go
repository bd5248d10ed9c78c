package route

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/router/blockkey"
	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// pool is the ranks of one model.
type pool struct {
	model   string
	scheme  blockkey.Scheme
	size    *blocksize.Size
	tracker *inflight.Tracker
	view    atomic.Pointer[view]

	// mu is held for the policy's part of a decision.
	mu     sync.Mutex
	policy policy.Policy
	state  policy.State
	ids    []int32
	loads  []inflight.Rank
	reqs   []policy.Request // with list and out the requests that are decided at once
	list   []*policy.Request
	out    []*policy.Decision
}

// view is the ranks of a pool at one time, made ready for walks. It does not change.
type view struct {
	states []*rankState
	ranks  *prefix.Ranks
	// blockSize is the number of tokens in a block, root where the plain scope's prompts begin.
	blockSize int
	root      blockkey.Link
	// sources are the stores that the ranks load from; they have to be told of new scopes.
	sources []*source
}

func (r *Router) newPool(spec *registry.Rank) (*pool, error) {
	p := &pool{model: spec.Model, scheme: spec.Engine.Scheme(), policy: r.opts.Policy()}
	p.size = blocksize.New(func() { r.resized(p) })
	p.size.Give(spec.BlockSize)
	lo := r.opts.Load
	lo.BlockSize, lo.MaxRanks = p.size.Tokens(), r.opts.MaxRanks
	var err error
	p.tracker, err = inflight.NewTracker(lo)
	return p, err
}

// resized has decisions made with the block size that the feeds of a pool have learnt.
func (r *Router) resized(p *pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pools[p.model] != p || r.closed {
		return
	}
	r.opts.Logger.Info("a model's block size is learnt", "model", p.model, "block_size", p.size.Tokens())
	if err := r.refresh(p); err != nil { // as many ranks as before never fail
		r.opts.Logger.Error("ranks cannot be made ready for walks", "error", err)
	}
}

// newView makes ranks ready for walks.
func (p *pool) newView(states []*rankState) (*view, error) {
	tokens := p.size.Tokens()
	v := &view{states: states, blockSize: tokens, root: p.scheme.Root(tokens, connector.Scope{})}
	ranks := make([]prefix.Rank, len(states))
	for i, s := range states {
		ranks[i] = prefix.Rank{GPU: s.gpu, HasGPU: true}
		for _, from := range []*source{s.disk, s.object} {
			if from == nil {
				continue
			}
			if from.tier == prefix.Disk {
				ranks[i].Disks = from.holderList()
			} else {
				ranks[i].Objects = from.holderList()
			}
			if !slices.Contains(v.sources, from) {
				v.sources = append(v.sources, from)
			}
		}
	}
	var err error
	v.ranks, err = prefix.NewRanks(ranks)
	return v, err
}

// show makes v what decisions are made by from now on.
func (p *pool) show(v *view) {
	nodes := v.nodes()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.BlockSize = v.blockSize
	p.tracker.SetBlockSize(v.blockSize)
	n := len(v.states)
	p.ids, p.loads = make([]int32, n), make([]inflight.Rank, n)
	p.state.Ranks = make([]policy.Rank, n)
	for i, s := range v.states {
		p.ids[i] = s.id
		p.state.Ranks[i].Node = nodes[i]
	}
	p.view.Store(v)
}

// nodes returns the number of each rank's node: the place of the first rank on the same disk. One without a disk has nothing
// to share, and -1.
func (v *view) nodes() []int32 {
	nodes, first := make([]int32, len(v.states)), make(map[string]int32)
	for i, s := range v.states {
		nodes[i] = -1
		if s.disk == nil {
			continue
		}
		if _, ok := first[s.disk.id]; !ok {
			first[s.disk.id] = int32(i)
		}
		nodes[i] = first[s.disk.id]
	}
	return nodes
}

// place lets the policy place jobs, walked with view v. Several are a batch, and exclude no ranks. The caller
// holds mu.
func (p *pool) place(v *view, jobs []*job) {
	p.tracker.Snapshot(p.ids, p.loads)
	for i, s := range v.states {
		r, spec := &p.state.Ranks[i], s.spec.Load()
		r.ID, r.Ready, r.Capacity = s.id, s.selectable(), policy.Capacity{MaxActive: spec.MaxActive, MaxTokens: spec.MaxTokens}
		r.Load, r.Speeds = p.loads[i], s.speeds()
	}
	for _, id := range jobs[0].req.Exclude {
		if i := slices.Index(p.ids, id); i >= 0 {
			p.state.Ranks[i].Ready = false
		}
	}
	p.reqs, p.list, p.out = slices.Grow(p.reqs[:0], len(jobs)), p.list[:0], p.out[:0]
	for i, j := range jobs {
		p.reqs = append(p.reqs, j.req.Request)
		r := &p.reqs[i]
		r.ID, r.Tokens, r.Match, r.Explain = j.id, j.tokens, j.d.matches, j.explain
		r.Head = j.req.Prompt[:min(len(j.req.Prompt), headTokens)]
		p.list, p.out = append(p.list, r), append(p.out, &j.d.Decision)
	}
	if len(jobs) > 1 {
		p.policy.(policy.Batcher).PlaceAll(&p.state, p.list, p.out)
	} else {
		p.policy.Place(&p.state, p.list[0], p.out[0])
	}
	clear(p.reqs)
	clear(p.out)
	for _, j := range jobs {
		if d := j.d; j.req.Pin != policy.NoPin && d.Rank != j.req.Pin && (d.Placed() || !j.req.Strict) {
			d.PinMissed = p.missed(j.req.Pin, d)
		}
	}
}

// headTokens is the length of the head by which policies tell prompts of a batch apart.
const headTokens = 64

// assumed is when the prefill of a request that was just placed should be over, had it taken twice its time;
// in Unix nanoseconds; 0 if the rank's speed is not known. The caller holds mu.
func (p *pool) assumed(d *Decision, now time.Time) int64 {
	l, v := &p.loads[d.Index], &p.state.Ranks[d.Index].Speeds
	if !(v.PrefillTokens > 0) {
		return 0
	}
	seconds := float64(l.QueuedTokens+int64(d.PromptTokens)-int64(d.UseTokens)) / v.PrefillTokens
	for _, tier := range [...]struct{ tokens, bytesPerS float64 }{
		{float64(l.QueuedDiskTokens + int64(d.LoadDisk)), v.DiskBytes}, {float64(l.QueuedObjectTokens + int64(d.LoadObject)), v.ObjectBytes},
	} {
		if tier.bytesPerS > 0 {
			seconds += tier.tokens * v.BytesPerToken / tier.bytesPerS
		}
	}
	return now.Add(time.Duration(min(max(2*seconds, leastAssumed), mostAssumed) * float64(time.Second))).UnixNano()
}

// leastAssumed and mostAssumed bound the time after which a prefill is assumed to be over, in seconds.
const leastAssumed, mostAssumed = 1, 3600

// missed is why a rank that was asked for was not taken.
func (p *pool) missed(id int32, d *Decision) policy.Reason {
	i := slices.Index(p.ids, id)
	switch {
	case i < 0:
		return policy.ReasonPinUnknown
	case !p.state.Ranks[i].Ready:
		return policy.ReasonPinNotReady
	case d.Reason == policy.ReasonConversation:
		return d.Reason
	default:
		return policy.ReasonPinFull
	}
}
