package steer

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// PurgeTenant removes what the store holds of a tenant in all namespaces, pinned records too, otherwise like [Steering.Purge].
// It fails with [store.ErrBusy] if there are too many tenants to tell its records from those of others.
func (s *Steering) PurgeTenant(ctx context.Context, id tenants.ID, wait time.Duration) (r purge.Result, err error) {
	upTo := s.o.Seq()
	if t := s.Tenant(id); t.ID != id {
		return r, fmt.Errorf("there are more tenants than can be told apart: the records of %v count with the rest, %v: %w", id, t.ID, store.ErrBusy)
	}
	r, err = s.o.Purges.RunTenant(ctx, id, upTo, wait)
	r.Incomplete = !s.o.AllComplete() || s.Tenant(tenants.Rest).Records > 0
	s.o.Namespaces.RequestTidy()
	return r, err
}

// Tenants lists those that have records, the sum of all namespaces.
func (s *Steering) Tenants() []tenants.Tenant { return s.o.Table.Tenants().All() }

// Tenant is what there is of one tenant.
func (s *Steering) Tenant(id tenants.ID) tenants.Tenant {
	t, _ := s.o.Table.Tenants().Tenant(id)
	return t
}
