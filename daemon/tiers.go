package daemon

import (
	"context"
	"sync/atomic"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/worker"
)

// tiers tells leaders where records are and how fast they come from there.
type tiers struct {
	b *backend
	// probing is set while a probe of the disk is under way.
	probing atomic.Bool
}

var _ leader.Tiers = (*tiers)(nil)

// Resident reports whether the host tier has the record.
func (t *tiers) Resident(id store.RecordID) bool { return t.b.arena.Holds(id) }

// Speeds are the disk's, as the store measures it, and that of the workers' copies.
func (t *tiers) Speeds() leader.Speeds {
	disk := t.b.store.ReadSpeed()
	return leader.Speeds{
		DiskBytesPerS: disk.BytesPerS, DiskLatencyS: disk.LatencyS, DiskQueuedBytes: disk.QueuedBytes,
		HostBytesPerS: t.b.copyBytesPerS(),
	}
}

// copyBytesPerS is what one goroutine copies into engine memory, 0 while that is not known.
func (b *backend) copyBytesPerS() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes, seconds := b.past.Worker.LoadedBytes, b.past.Worker.CopySeconds
	for w := range b.workers {
		st := w.Stats()
		bytes, seconds = bytes+st.LoadedBytes, seconds+st.CopySeconds
	}
	const enough = 64 << 20
	if bytes < enough || seconds <= 0 {
		return 0
	}
	return float64(bytes) / seconds
}

// probe measures the disk with a read that no engine waits for.
func (t *tiers) probe() {
	if !t.probing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer t.probing.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), t.b.opts.LoadTimeout)
		defer cancel()
		// What it finds is in the store's speed; that it found nothing to read is no news.
		_ = t.b.store.Probe(ctx, store.ProbeOptions{})
	}()
}

// stager is the way of a leader to the host tier.
type stager struct{ *worker.Stager }

var _ leader.Staging = stager{}

// Stage brings records into the host tier.
func (s stager) Stage(
	ctx context.Context, ns store.NamespaceID, shard connector.Shard, parent connector.Key, blocks []connector.PlanBlock,
) ([]connector.StagedBlock, leader.Pin) {
	staged, pins := s.Stager.Stage(ctx, ns, shard, parent, blocks)
	if pins == nil {
		return nil, nil
	}
	return staged, pins
}
