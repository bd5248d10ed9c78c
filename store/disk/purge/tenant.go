package purge

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index"
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

// tenantRun is how many slots are looked at for a tenant's records under one hold of the index's lock, removeRun how many
// records are removed.
const tenantRun, removeRun = 4096, 256

// emptyTenant is [index.Table.EmptyOf] for a tenant, in all namespaces.
func emptyTenant(t *index.Table, id tenants.ID, upTo uint64, from index.Ref, out []index.Removed) (removed []index.Removed, left int, next index.Ref) {
	next = from
	t.Change(func(c index.Change) {
		before := len(out)
		has, number := t.Tenants().Tenant(id)
		for ; next < from+tenantRun && len(out)-before < removeRun; next++ {
			if next >= c.Limit() || has.ID != id || has.Records == 0 {
				next = index.NoRef
				return
			}
			if t.Tenants().At(uint32(next)) != number {
				continue
			}
			switch s := c.Slot(next); {
			case s.Seq == 0 || s.Seq > upTo:
			case s.Pins > 0:
				left++
			default:
				if r, ok := c.Remove(next, s.Seq); ok {
					out = append(out, r)
				}
			}
		}
	})
	return out, left, next
}
