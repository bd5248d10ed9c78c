package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/leader"
)

// tiers tells leaders where records are and how fast they come from there. Leaders ask
// with their lock held: nothing here may take the backend's mutex, under which leaders are
// asked for their counters.
type tiers struct {
	b *backend
	// probing is set while a probe of the disk is under way.
	probing atomic.Bool
}

var _ leader.Tiers = (*tiers)(nil)

// Present says which records the host tier has.
func (t *tiers) Present(ns connector.NamespaceDigest, shard connector.Shard, keys []connector.Key, at []bool) {
	t.b.cache.Present(ns, shard, keys, at)
}

// Speeds are the disk's, as the store measures it, and that of the workers' copies.
func (t *tiers) Speeds() leader.Speeds {
	disk := t.b.store.Speed()
	return leader.Speeds{
		DiskBytesPerS: disk.BytesPerS, DiskLatencyS: disk.LatencyS, DiskQueuedBytes: disk.QueuedBytes,
		HostBytesPerS: t.b.cache.Speed().BytesPerS,
	}
}

// probeTime is how long a probe reads. The store's measure forgets by busy time alone: with
// one record each, a disk that is fast again would be known as slow for minutes. As leaders
// probe once a second, it takes a twentieth of the disk's time.
const probeTime = 50 * time.Millisecond

// probe measures the disk with reads that no engine waits for. The speed of copies cannot be
// measured without an engine: what is known of it fades, until a load is a measurement.
func (t *tiers) probe() {
	t.b.cache.FadeSpeed()
	if !t.probing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer t.probing.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), t.b.opts.LoadTimeout)
		defer cancel()
		// What it finds is in the store's speed; that it found nothing to read is no news.
		for began := time.Now(); time.Since(began) < probeTime; {
			if t.b.store.Probe(ctx) != nil {
				return
			}
		}
	}()
}
