package route

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kvconn/kvconn/router/blocksize"
	"github.com/kvconn/kvconn/router/feed"
	"github.com/kvconn/kvconn/router/inflight"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/prefix"
	"github.com/kvconn/kvconn/router/registry"
)

// counts are counted at decisions.
type counts struct {
	reasons                              map[policy.Reason]*atomic.Uint64
	prompt, gpu, disk, object, pinMissed atomic.Uint64
}

func (c *counts) add(d *Decision) {
	c.reasons[d.Reason].Add(1)
	if d.PinMissed != "" {
		c.pinMissed.Add(1)
	}
	if !d.Placed() {
		return
	}
	c.prompt.Add(uint64(d.PromptTokens))
	c.gpu.Add(uint64(d.UseTokens - d.LoadDisk - d.LoadObject))
	c.disk.Add(uint64(d.LoadDisk))
	c.object.Add(uint64(d.LoadObject))
}

// Stats are the router's figures, counted since its start, with their names in JSON and as metrics.
type Stats struct {
	// Ranks are registered, Ready of them get requests, InFlight is the number of requests.
	Ranks    int `json:"ranks" metric:"ranks" help:"Ranks registered."`
	Ready    int `json:"ready" metric:"ranks_ready" help:"Ranks that get requests."`
	InFlight int `json:"in_flight" metric:"requests_in_flight" help:"Requests placed that have not finished."`
	// Reasons are how decisions ended.
	Reasons map[policy.Reason]uint64 `json:"decisions" metric:"decisions_total" label:"reason" help:"Decisions by their reason."`
	// PinsMissed are requests placed elsewhere than where their pin says.
	PinsMissed uint64 `json:"pins_missed" metric:"pins_missed_total" help:"Requests placed elsewhere than a pin that was not strict."`
	// PromptTokens are of the requests placed; GPUTokens, DiskTokens and ObjectTokens of them were expected
	// to be cached there.
	PromptTokens uint64 `json:"prompt_tokens" metric:"prompt_tokens_total" help:"Prompt tokens of the requests placed."`
	GPUTokens    uint64 `json:"gpu_tokens" metric:"cached_tokens_total" label:"tier=gpu" help:"Prompt tokens expected to be cached on the chosen rank, by tier."`
	DiskTokens   uint64 `json:"disk_tokens" metric:"cached_tokens_total" label:"tier=disk"`
	ObjectTokens uint64 `json:"object_tokens" metric:"cached_tokens_total" label:"tier=object"`

	// BlockSizes are what is known of each model's blocks.
	BlockSizes []blocksize.Status `json:"block_sizes"`

	Index   prefix.Stats          `json:"-"`
	Engines []feed.RankStats      `json:"-"`
	Stores  []feed.ResidencyStats `json:"-"`
}

// Stats returns the router's figures.
func (r *Router) Stats() Stats {
	c := &r.counts
	s := Stats{
		Reasons: make(map[policy.Reason]uint64, len(c.reasons)), PinsMissed: c.pinMissed.Load(), PromptTokens: c.prompt.Load(),
		GPUTokens: c.gpu.Load(), DiskTokens: c.disk.Load(), ObjectTokens: c.object.Load(), Index: r.index.Stats(),
		BlockSizes: []blocksize.Status{},
	}
	for reason, n := range c.reasons {
		s.Reasons[reason] = n.Load()
	}
	r.mu.Lock()
	states, sources, pools := r.all()
	r.mu.Unlock()
	for _, p := range pools {
		s.InFlight += p.tracker.Requests()
		s.BlockSizes = append(s.BlockSizes, p.size.Status(p.model))
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
	sources = slices.SortedFunc(maps.Values(r.sources), func(a, b *source) int {
		return cmp.Or(strings.Compare(a.url, b.url), strings.Compare(a.model, b.model))
	})
	pools = slices.SortedFunc(maps.Values(r.pools), func(a, b *pool) int { return strings.Compare(a.model, b.model) })
	return r.sorted(), sources, pools
}

// sorted lists the ranks by id: in the same order in all routers. The caller holds mu.
func (r *Router) sorted() []*rankState {
	return slices.SortedFunc(maps.Values(r.ranks), func(a, b *rankState) int { return int(a.id) - int(b.id) })
}

// RankInfo is a registered rank at one moment, with the JSON names of the HTTP interface.
type RankInfo struct {
	registry.Rank
	// Ready says whether it gets requests, Why why not.
	Ready bool   `json:"ready"`
	Why   string `json:"why,omitempty"`
	// Load is what is in flight there.
	Load inflight.Rank `json:"load"`
	// Speed is what decisions are made with; 0 is unknown.
	Speed policy.Speeds `json:"speed"`
	// BlockTokens is the number of tokens in a block that decisions are made with: the rank's block_size, if that is given.
	BlockTokens int `json:"block_tokens"`
	// GPUBlocks are the blocks known to be in its GPU.
	GPUBlocks int64 `json:"gpu_blocks"`
	// EventFeed is the state of its events' feed, DiskFeed and ObjectFeed of its stores'; nil if there is
	// none.
	EventFeed  *feed.RankStats      `json:"event_feed,omitempty"`
	DiskFeed   *feed.ResidencyStats `json:"disk_feed,omitempty"`
	ObjectFeed *feed.ResidencyStats `json:"object_feed,omitempty"`
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
	states := r.sorted()
	r.mu.Unlock()
	list := make([]RankInfo, len(states))
	for i, s := range states {
		list[i] = r.info(s)
	}
	return list
}

func (r *Router) info(s *rankState) RankInfo {
	i := RankInfo{Rank: *s.spec.Load(), Ready: s.selectable(), Why: *s.why.Load(), Speed: s.speeds(), BlockTokens: s.pool.size.Tokens()}
	if i.Draining && i.Why == "" {
		i.Why = "draining"
	}
	ids, loads := [1]int32{s.id}, [1]inflight.Rank{}
	s.pool.tracker.Snapshot(ids[:], loads[:])
	i.Load = loads[0]
	i.GPUBlocks = r.index.HolderBlocks(s.gpu)
	if s.events != nil {
		events := s.events.Stats()
		i.EventFeed = &events
	}
	i.DiskFeed, i.ObjectFeed = s.disk.stats(), s.object.stats()
	return i
}

// stats are the figures of a source's feed, nil if there is no source.
func (s *source) stats() *feed.ResidencyStats {
	if s == nil {
		return nil
	}
	st := s.feed.Stats()
	return &st
}

// Models lists the names of models and adapters that requests may have, sorted.
func (r *Router) Models() []string { return slices.Sorted(maps.Keys(*r.models.Load())) }

// Endpoints lists the ranks of each endpoint.
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

// ReadyEndpoints lists the endpoints of the ranks of a model that get requests, those with the fewest
// requests first.
func (r *Router) ReadyEndpoints(model string) []string {
	to, err := r.find(model)
	if err != nil {
		return nil
	}
	v := to.pool.view.Load()
	ids, loads := make([]int32, len(v.states)), make([]inflight.Rank, len(v.states))
	for i, s := range v.states {
		ids[i] = s.id
	}
	to.pool.tracker.Snapshot(ids, loads)
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

// maxEndpoints bounds the answer of ReadyEndpoints: no caller tries more.
const maxEndpoints = 4
