package leader

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader/pricing"
	"github.com/kvconn/kvconn/store"
)

// Index is what the leader needs of the tiers. Its methods never wait for I/O.
type Index interface {
	store.Leases
	pricing.Index
}

// hits finds how much of a request is there and worth loading, and pins it. The leaders of both key
// schemes share it. Its user's lock guards all but notReady.
type hits struct {
	opts  Options
	bs    int // tokens in a block
	index Index
	// groups are the layer groups, and prefix the shards that must have every block that is
	// offered.
	groups []pricing.Group
	prefix []connector.Shard

	notReady atomic.Bool
	// here is what is known of the ranks on this node, nil while nobody has told; priced is what the price
	// knows of them.
	here   atomic.Pointer[here]
	priced *here

	stats Stats
	// held are leases to release once others have taken their place.
	held    []store.LeaseID
	have    pricing.Presence
	windows pricing.Windows
	price   pricing.Price
	prefill pricing.PrefillSpeed
	probed  time.Time
	// refused are the blocks that the last decision left out, because loading them takes too long.
	refused int
}

// hit is what one request has of the tiers.
type hit struct {
	keys []connector.Key
	// leases pin what is offered.
	leases []store.LeaseID
	// decided is set once the request counts among the decisions.
	decided bool
}

func (h *hits) init(o Options, scheme string, index Index) error {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	m := o.Manifest
	if m.KeyScheme != scheme {
		return fmt.Errorf("leader: the key scheme is %q, want %q", m.KeyScheme, scheme)
	}
	h.opts, h.bs, h.index, h.groups = o, m.BlockSize, index, make([]pricing.Group, len(m.Groups))
	h.have = pricing.Presence{Index: index, NS: o.Namespace}
	h.windows = pricing.Windows{BlockSize: m.BlockSize}
	for g := range h.groups {
		h.groups[g] = pricing.Group{Group: &m.Groups[g], Index: g, Shards: m.GroupShards(g)}
		// An engine that cannot report a failed load may still take a part of the offer. Then it
		// needs blocks of a window that the whole offer would not: all must be there.
		if m.Groups[g].Window == 0 || o.Handoff != nil {
			h.prefix = append(h.prefix, h.groups[g].Shards...)
		} else {
			h.windows.Searches = append(h.windows.Searches, pricing.Search{Group: &h.groups[g]})
		}
	}
	h.price.Init(o.Levels, m.BlockSize, h.groups, o.Handoff != nil)
	return nil
}

// SetReady tells the leader whether the ranks on this node can load and save. While they cannot, it
// offers nothing and plans no saves. They cannot if the memory of a rank was refused or lost, or,
// for an engine that cannot report a failed load, until all its ranks have registered here. A
// leader starts ready, because a rank that it has never seen may live on another node.
func (h *hits) SetReady(ready bool) { h.notReady.Store(!ready) }

// here are the ranks of the engine on this node.
type here struct {
	shards []connector.Shard // that they load
	// part says that other ranks are on other nodes, whether or not these load the same shards.
	part bool
}

// SetHere tells the leader which ranks have registered on this node: what they load is what a hit costs here. Where
// other nodes find theirs the leader never knows; they are taken to be no slower. None stands for all.
func (h *hits) SetHere(ranks []int) {
	m := h.opts.Manifest
	n := len(slices.Compact(slices.Sorted(slices.Values(ranks))))
	h.here.Store(&here{shards: m.Shards(ranks), part: 0 < n && n < m.Ranks()})
}

// renew makes pins last for a load.
func (h *hits) renew(leases []store.LeaseID) {
	for _, id := range leases {
		h.index.Renew(id, h.opts.LoadTTL)
	}
}

// release lets go of what is pinned for a hit.
func (h *hits) release(r *hit) {
	r.leases = h.drop(r.leases)
}

// drop releases leases, and returns their memory.
func (h *hits) drop(leases []store.LeaseID) []store.LeaseID {
	for _, id := range leases {
		h.index.Release(id)
	}
	return leases[:0]
}

// swap is called before a hit is sought again: what was pinned for it stays so until releaseHeld.
func (h *hits) swap(r *hit) {
	h.held = append(h.held[:0], r.leases...)
	r.leases = r.leases[:0]
}

func (h *hits) releaseHeld() { h.held = h.drop(h.held) }

// snapshot is the counters, requests of them being followed.
func (h *hits) snapshot(requests int) Stats {
	s := h.stats
	s.Requests = requests
	s.PrefillTokensPerS = h.prefillTokensPerS()
	s.TierRefused = h.price.Refusing
	s.LoadBytesPerS = make(map[string]float64, len(h.opts.Levels))
	for i, level := range h.opts.Levels {
		speed := &h.price.Speeds[i]
		s.LoadBytesPerS[level.Name()] = speed.BytesPerS
		s.LoadLatencyS = max(s.LoadLatencyS, speed.LatencyS)
		s.QueuedBytes += speed.QueuedBytes
	}
	return s
}
