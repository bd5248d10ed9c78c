// Package handoff pins records in the host tier for engines that copy them out themselves.
package handoff

import (
	"context"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Handoffs pins records in memory for engines that cannot report a failed load and therefore copy
// the records out themselves. It is safe for concurrent use.
type Handoffs struct {
	cache *host.Cache
	// account bounds what is pinned at one time.
	account *host.Account
	reads   sync.WaitGroup
}

// New returns one that pins memory on account, which it closes. The tier's own deadline
// bounds each read.
func New(c *host.Cache, account *host.Account) *Handoffs {
	return &Handoffs{cache: c, account: account}
}

// Close waits for the reads that calls of Handoff have left behind, and ends the account.
func (h *Handoffs) Close() {
	h.reads.Wait()
	h.account.Close()
}

// Handoff reads the records of consecutive blocks that are not in memory, and waits until all
// are there or ctx ends. It returns where the leading blocks that are verified and pinned lie,
// with their checksums, and a function that lets go of them; nil if there are none. Reads
// that ctx leaves behind go on, and what they bring is in memory for the next call. blocks are
// used during the call only.
func (h *Handoffs) Handoff(
	ctx context.Context, ns connector.NamespaceDigest, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock,
) ([]connector.HandoffBlock, func()) {
	payloadBytes := h.cache.Tier().PayloadBytes(ns, shard)
	if payloadBytes == 0 || len(blocks) == 0 {
		return nil, nil
	}
	blocks = slices.Clone(blocks)
	p := &prefix{items: make([]*host.Item, len(blocks)), missing: len(blocks), all: make(chan struct{})}
	h.reads.Go(func() {
		h.cache.Load(ctx, context.Background(), h.account, len(blocks), func(it *host.Item) error {
			b := &blocks[it.Index]
			it.Record = store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: b.Key}, Parent: parent, Proof: b.Proof}
			it.PayloadBytes, parent = payloadBytes, b.Key
			return nil
		}, p.arrived)
	})
	select {
	case <-p.all:
	case <-ctx.Done():
	}
	return p.take()
}

// prefix gathers what one call of Handoff brings.
type prefix struct {
	mu    sync.Mutex
	items []*host.Item // by index, nil where none has arrived
	// missing have not ended; all is closed when none is.
	missing int
	all     chan struct{}
	// taken is set once the call has ended.
	taken bool
}

// arrived keeps a record. One that comes late stays in memory unpinned.
func (p *prefix) arrived(it *host.Item) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case it.Err != nil:
	case p.taken:
		it.Slot.Release()
	default:
		p.items[it.Index] = it
	}
	if p.missing--; p.missing == 0 {
		close(p.all)
	}
}

// take keeps the items before the first gap and lets go of the others.
func (p *prefix) take() ([]connector.HandoffBlock, func()) {
	p.mu.Lock()
	p.taken = true
	p.mu.Unlock() // items that arrive late must not wait for the sums
	n := slices.Index(p.items, nil)
	if n < 0 {
		n = len(p.items)
	}
	release := func(items []*host.Item) {
		for _, it := range items {
			if it != nil {
				it.Slot.Release()
			}
		}
	}
	release(p.items[n:])
	if n == 0 {
		return nil, nil
	}
	out := make([]connector.HandoffBlock, n)
	for i, it := range p.items[:n] {
		out[i] = connector.HandoffBlock{Offset: uint64(it.Slot.Offset()), Sum: xxh3.Hash(it.Slot.Bytes())}
	}
	return out, func() { release(p.items[:n]) }
}
