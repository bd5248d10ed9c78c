package worker

import (
	"context"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// Stager brings records into the host tier for engines that copy them themselves: those
// that cannot report a failed load. It is safe for concurrent use.
type Stager struct {
	store Store
	// account bounds what is pinned at one time.
	account *host.Account
	// payloadBytes tells the size of a shard's records, 0 if there are none.
	payloadBytes func(store.NamespaceID, connector.Shard) int
}

// NewStager returns a stager that pins memory on account, which the caller closes.
func NewStager(s Store, account *host.Account, payloadBytes func(store.NamespaceID, connector.Shard) int) *Stager {
	return &Stager{store: s, account: account, payloadBytes: payloadBytes}
}

// Pins keep staged records where they are.
type Pins struct {
	mu    sync.Mutex
	slots []*host.Slot
}

// Release lets go of the records. Calls beyond the first do nothing.
func (p *Pins) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.slots {
		s.Release()
	}
	p.slots = nil
}

// staging is one call of Stage.
type staging struct {
	mu    sync.Mutex
	slots []*host.Slot
}

// Stage reads the records of consecutive blocks, as far as they are not in memory, until
// ctx ends. It returns where those leading ones lie that are verified and pinned, with
// their checksums, and the pins. What was read beyond is in memory for the next call.
func (s *Stager) Stage(
	ctx context.Context, ns store.NamespaceID, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock,
) ([]connector.StagedBlock, *Pins) {
	payloadBytes := s.payloadBytes(ns, shard)
	if payloadBytes == 0 {
		return nil, new(Pins)
	}
	st := staging{slots: make([]*host.Slot, len(blocks))}
	f := fetch{
		ctx: ctx, store: s.store, account: s.account, count: len(blocks),
		record: func(i int) (host.Record, int) {
			p := parent
			if i > 0 {
				p = blocks[i-1].Key
			}
			return host.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: blocks[i].Key}, Parent: p, Proof: blocks[i].Proof}, payloadBytes
		},
		done: func(i int, slot *host.Slot, err error) {
			if err != nil {
				return
			}
			st.mu.Lock()
			st.slots[i] = slot
			st.mu.Unlock()
		},
	}
	f.run()
	return st.leading()
}

// leading keeps the slots in front of the first hole and gives back the others.
func (st *staging) leading() ([]connector.StagedBlock, *Pins) {
	n := 0
	for n < len(st.slots) && st.slots[n] != nil {
		n++
	}
	for _, slot := range st.slots[n:] {
		if slot != nil {
			slot.Release()
		}
	}
	out := make([]connector.StagedBlock, n)
	for i, slot := range st.slots[:n] {
		out[i] = connector.StagedBlock{Offset: uint64(slot.Offset()), Sum: xxh3.Hash(slot.Bytes())}
	}
	return out, &Pins{slots: st.slots[:n]}
}
