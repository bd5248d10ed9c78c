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
	payloadBytes func(connector.NamespaceDigest, connector.Shard) int
	reads        sync.WaitGroup
}

// NewStager returns a stager that pins memory on account, which it closes. The store's own
// read timeout bounds what it reads.
func NewStager(s Store, account *host.Account, payloadBytes func(connector.NamespaceDigest, connector.Shard) int) *Stager {
	return &Stager{store: s, account: account, payloadBytes: payloadBytes}
}

// Close waits for the reads that calls of Handoff have left behind, and ends the account.
func (s *Stager) Close() {
	s.reads.Wait()
	s.account.Close()
}

// staging is one call of Handoff.
type staging struct {
	mu    sync.Mutex
	slots []*host.Slot
	// over is set once the call has taken what was there.
	over bool
}

// Handoff reads the records of consecutive blocks that are not in memory, and waits until all
// are there or ctx ends. It returns where the leading blocks that are verified and pinned lie,
// with their checksums, and a function that lets go of them; nil if there are none. Reads
// that ctx leaves behind go on, and what they bring is in memory for the next call.
func (s *Stager) Handoff(
	ctx context.Context, ns connector.NamespaceDigest, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock,
) ([]connector.HandoffBlock, func()) {
	payloadBytes := s.payloadBytes(ns, shard)
	if payloadBytes == 0 {
		return nil, nil
	}
	records := make([]store.Record, len(blocks)) // the caller's blocks are valid during the call only
	for i := range blocks {
		records[i] = store.Record{ID: store.RecordID{Namespace: ns, Shard: shard, Key: blocks[i].Key}, Parent: parent, Proof: blocks[i].Proof}
		parent = blocks[i].Key
	}
	st := &staging{slots: make([]*host.Slot, len(blocks))}
	f := fetch{
		ctx: ctx, readCtx: context.Background(), store: s.store, account: s.account, count: len(blocks),
		record: func(i int) (store.Record, int, error) { return records[i], payloadBytes, nil },
		done:   st.arrived,
	}
	all := make(chan struct{})
	s.reads.Go(func() {
		defer close(all)
		f.run()
	})
	select {
	case <-all:
	case <-ctx.Done():
	}
	return st.leading()
}

// arrived takes in a record. One that comes late stays in memory unpinned.
func (st *staging) arrived(i int, slot *host.Slot, err error) {
	if err != nil {
		return
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.over {
		slot.Release()
		return
	}
	st.slots[i] = slot
}

// leading keeps the slots in front of the first hole and gives back the others.
func (st *staging) leading() ([]connector.HandoffBlock, func()) {
	st.mu.Lock()
	st.over = true
	st.mu.Unlock() // those who arrive late must not wait for the sums
	n := 0
	for n < len(st.slots) && st.slots[n] != nil {
		n++
	}
	for _, slot := range st.slots[n:] {
		if slot != nil {
			slot.Release()
		}
	}
	if n == 0 {
		return nil, nil
	}
	out := make([]connector.HandoffBlock, n)
	for i, slot := range st.slots[:n] {
		out[i] = connector.HandoffBlock{Offset: uint64(slot.Offset()), Sum: xxh3.Hash(slot.Bytes())}
	}
	return out, func() {
		for _, slot := range st.slots[:n] {
			slot.Release()
		}
	}
}
