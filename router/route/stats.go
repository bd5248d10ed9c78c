package route

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/load"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// counts are counted at decisions.
type counts struct {
	reasons                   [policy.ReasonInvalid + 1]atomic.Uint64
	prompt, gpu, disk, object atomic.Uint64
	predictErrors, pinMissed  atomic.Uint64
}

func (c *counts) add(d *Decision, tokens int) {
	c.reasons[d.Reason].Add(1)
	if d.PinMissed != policy.ReasonPin {
		c.pinMissed.Add(1)
	}
	if !d.Placed() {
		return
	}
	c.prompt.Add(uint64(tokens))
	c.gpu.Add(uint64(d.UseTokens - d.LoadDisk - d.LoadObject))
	c.disk.Add(uint64(d.LoadDisk))
	c.object.Add(uint64(d.LoadObject))
}

// Stats are the router's figures, counted since its start.
type Stats struct {
	// Ranks are those registered, Ready those that get requests, InFlight the requests.
	Ranks, Ready, InFlight int
	// Reasons are how decisions ended, by policy.Reason.
	Reasons map[string]uint64
	// PinsMissed are requests placed elsewhere than where their pin, which was not strict, says.
	PinsMissed uint64
	// PromptTokens are of the requests placed; GPUTokens, DiskTokens and ObjectTokens those of them that
	// were expected to be cached there.
	PromptTokens, GPUTokens, DiskTokens, ObjectTokens uint64
	// PredictErrors are predictions that the index did not take.
	PredictErrors uint64
	Index         prefix.Stats
	Engines       []feed.RankStats
	Stores        []feed.ResidencyStats
}

// Stats returns the router's figures.
func (r *Router) Stats() Stats {
	s := Stats{
		Reasons: make(map[string]uint64), PinsMissed: r.counts.pinMissed.Load(), PromptTokens: r.counts.prompt.Load(),
		GPUTokens: r.counts.gpu.Load(), DiskTokens: r.counts.disk.Load(), ObjectTokens: r.counts.object.Load(),
		PredictErrors: r.counts.predictErrors.Load(), Index: r.index.Stats(),
	}
	for reason := range r.counts.reasons {
		s.Reasons[policy.Reason(reason).String()] = r.counts.reasons[reason].Load()
	}
	r.mu.Lock()
	states, sources, pools := r.all()
	r.mu.Unlock()
	for _, p := range pools {
		s.InFlight += p.tracker.Requests()
	}
	for _, rank := range states {
		s.Ranks++
		if rank.selectable() {
			s.Ready++
		}
		if rank.events != nil {
			s.Engines = append(s.Engines, rank.events.Stats())
		}
	}
	for _, from := range sources {
		s.Stores = append(s.Stores, from.feed.Stats())
	}
	return s
}

// all lists ranks by id, sources and pools. The caller holds mu, and asks feeds only after it.
func (r *Router) all() (states []*rankState, sources []*source, pools []*pool) {
	for _, s := range r.ranks {
		states = append(states, s)
	}
	slices.SortFunc(states, func(a, b *rankState) int { return int(a.id) - int(b.id) })
	for _, s := range r.sources {
		sources = append(sources, s)
	}
	slices.SortFunc(sources, func(a, b *source) int {
		return cmp.Or(strings.Compare(a.url, b.url), strings.Compare(a.model, b.model))
	})
	for _, p := range r.pools {
		pools = append(pools, p)
	}
	return states, sources, pools
}

// RankInfo is a registered rank as it stands.
type RankInfo struct {
	Spec registry.Rank
	// Ready says whether it gets requests, Why why not.
	Ready bool
	Why   string
	Load  load.Rank
	// Speeds are those that decisions are made with; 0 is unknown.
	Speeds policy.Speeds
	// Blocks are those in its GPU.
	Blocks int64
	// Events is the state of its feed, nil without events; Disk and Object those of its stores'.
	Events       *feed.RankStats
	Disk, Object *feed.ResidencyStats
}

// Rank describes one rank; ok is false if there is none.
func (r *Router) Rank(id int32) (info RankInfo, ok bool) {
	r.mu.Lock()
	s := r.ranks[id]
	r.mu.Unlock()
	if s == nil {
		return info, false
	}
	return r.info(s), true
}

// Ranks describes all ranks, by id.
func (r *Router) Ranks() []RankInfo {
	r.mu.Lock()
	states, _, _ := r.all()
	r.mu.Unlock()
	list := make([]RankInfo, len(states))
	for i, s := range states {
		list[i] = r.info(s)
	}
	return list
}

func (r *Router) info(s *rankState) RankInfo {
	i := RankInfo{Spec: *s.spec.Load(), Ready: s.selectable(), Why: *s.why.Load(), Speeds: s.speeds()}
	if i.Spec.Draining && i.Why == "" {
		i.Why = "draining"
	}
	ids, loads := [1]int32{s.id}, [1]load.Rank{}
	s.pool.tracker.Snapshot(ids[:], loads[:], nil, nil)
	i.Load = loads[0]
	if h, ok := r.index.Holder(s.gpu); ok {
		i.Blocks = h.Blocks
	}
	if s.events != nil {
		events := s.events.Stats()
		i.Events = &events
	}
	for _, from := range []struct {
		source *source
		stats  **feed.ResidencyStats
	}{{s.disk, &i.Disk}, {s.object, &i.Object}} {
		if from.source != nil {
			st := from.source.feed.Stats()
			*from.stats = &st
		}
	}
	return i
}

// Models lists the names of models and adapters that requests may have, in order.
func (r *Router) Models() []string {
	var names []string
	for name := range *r.models.Load() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Endpoints lists the ranks behind each endpoint.
func (r *Router) Endpoints() map[string][]int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make(map[string][]int32)
	for _, s := range r.ranks {
		endpoint := s.spec.Load().Endpoint
		list[endpoint] = append(list[endpoint], s.id)
	}
	return list
}

// RanksAt lists the ranks behind an endpoint.
func (r *Router) RanksAt(endpoint string) (list []int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.ranks {
		if s.spec.Load().Endpoint == endpoint {
			list = append(list, s.id)
		}
	}
	return list
}

// ReadyEndpoints lists the endpoints of the ranks of a model that get requests, those with the fewest
// requests first.
func (r *Router) ReadyEndpoints(model string) []string {
	to, err := r.find(model)
	if err != nil {
		return nil
	}
	v := to.pool.view.Load()
	ids, loads := make([]int32, len(v.states)), make([]load.Rank, len(v.states))
	for i, s := range v.states {
		ids[i] = s.id
	}
	to.pool.tracker.Snapshot(ids, loads, nil, nil)
	order := make([]int, 0, len(ids))
	for i, s := range v.states {
		if s.selectable() {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(i, j int) int { return loads[i].ActiveRequests - loads[j].ActiveRequests })
	var list []string
	for _, i := range order {
		if endpoint := v.states[i].spec.Load().Endpoint; !slices.Contains(list, endpoint) {
			list = append(list, endpoint)
		}
		if len(list) == maxEndpoints {
			break
		}
	}
	return list
}

// maxEndpoints bounds the answer of ReadyEndpoints: nobody tries more.
const maxEndpoints = 4
