// Package probe measures how fast tiers are, while no engine waits for them.
package probe

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/store"
)

// Prober measures a tier with reads that no engine waits for.
type Prober struct {
	// Tier is what is measured.
	Tier store.Tier
	// Timeout bounds a probe.
	Timeout time.Duration
	// probing is set while a probe is under way.
	probing atomic.Bool
}

// probeTime is how long a probe reads. A tier's measure forgets by busy time alone: with one record
// each, a disk that is fast again would be known as slow for minutes. As leaders probe once a
// second, it takes a twentieth of the disk's time.
const probeTime = 50 * time.Millisecond

// Begin begins a probe unless one is under way.
func (p *Prober) Begin() {
	if !p.probing.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer p.probing.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), p.Timeout)
		defer cancel()
		// The result is in the tier's speed; that there is nothing to read is no news.
		for began := time.Now(); time.Since(began) < probeTime; {
			if p.Tier.Probe(ctx) != nil {
				return
			}
		}
	}()
}

// Probing reports whether a probe is under way.
func (p *Prober) Probing() bool { return p.probing.Load() }
