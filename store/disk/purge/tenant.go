package purge

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// tenantTarget is what the purge of a tenant removes.
type tenantTarget struct {
	id   tenants.ID
	upTo uint64
}

// HoldsTenant reports whether a tenant is being purged: no look-up is to pin its records then.
func (p *Purges) HoldsTenant(id tenants.ID) bool { return p.DoomsTenant(id, 0) }

// DoomsTenant reports whether a tenant's record is about to be purged: see [Purges.Dooms].
func (p *Purges) DoomsTenant(id tenants.ID, seq uint64) bool {
	t := p.tenant.Load()
	return t != nil && t.id == id && seq <= t.upTo
}

// RunTenant removes the records of a tenant in all namespaces, otherwise like [Purges.Run].
func (p *Purges) RunTenant(ctx context.Context, id tenants.ID, upTo uint64, wait time.Duration) (r Result, err error) {
	select {
	case p.running <- struct{}{}:
		defer func() { <-p.running }()
	case <-ctx.Done():
		return r, fmt.Errorf("wait for another purge: %w: %w", store.ErrTimeout, context.Cause(ctx))
	}
	p.tenant.Store(&tenantTarget{id, upTo})
	defer p.tenant.Store(nil)
	return p.repeat(ctx, Step{tenant: &id, upTo: upTo}, wait)
}
