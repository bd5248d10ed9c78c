package disk

import (
	"context"
	"fmt"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/namespace"
	"github.com/kvconn/kvconn/store/disk/purge"
	"github.com/kvconn/kvconn/store/disk/recovery"
)

// Purge removes what the store holds of a namespace, and returns when that is durable: see [purge.Purges]. It fails with
// [namespace.ErrNotOpen] if the namespace is not known. Nothing of it is found by look-ups meanwhile.
func (s *Store) Purge(ctx context.Context, ns connector.NamespaceDigest, wait time.Duration) (r purge.Result, err error) {
	upTo := s.seq.Load() // before the number is asked for, which may be given to another namespace
	number, known := s.namespaces.Number(ns)
	if !known {
		return r, fmt.Errorf("namespace %v: %w", ns, namespace.ErrNotOpen)
	}
	r, err = s.purges.Run(ctx, number, upTo, wait)
	r.Incomplete = !s.rebuild.FindsAll() || s.state.Hides(number)
	s.namespaces.RequestTidy()
	return r, err
}

// PurgeTenant removes what the store holds of a tenant in all namespaces, otherwise like [Store.Purge]. It fails with
// [store.ErrBusy] if there are too many tenants to tell its records from those of others.
func (s *Store) PurgeTenant(ctx context.Context, id tenants.ID, wait time.Duration) (r purge.Result, err error) {
	upTo := s.seq.Load()
	if t, _ := s.table.Tenants().Tenant(id); t.ID != id {
		return r, fmt.Errorf("there are more tenants than can be told apart: the records of %v count with the rest, %v: %w", id, t.ID, store.ErrBusy)
	}
	r, err = s.purges.RunTenant(ctx, id, upTo, wait)
	rest, _ := s.table.Tenants().Tenant(tenants.Rest)
	r.Incomplete = !s.rebuild.FindsAll() || s.state.Hidden() != recovery.Hidden{} || rest.Records > 0
	s.namespaces.RequestTidy()
	return r, err
}

// Tenants lists those that have records, the sum of all namespaces.
func (s *Store) Tenants() []tenants.Tenant { return s.table.Tenants().All() }

// Tenant is what there is of one tenant.
func (s *Store) Tenant(id tenants.ID) tenants.Tenant {
	t, _ := s.table.Tenants().Tenant(id)
	return t
}

// purgeStep is a step of a purge.
type purgeStep struct {
	*purge.Step
	done chan error
}

func (p purgeStep) prepare(c *committing) {
	if !c.journalFailed() {
		c.removed = p.Take(c.s.table, c.removed)
	}
}

func (p purgeStep) settle(_ *committing, err error) { p.done <- err }

func (s *Store) commitPurge(step *purge.Step) error {
	p := purgeStep{step, make(chan error, 1)}
	if !s.commits.TryPush(p) {
		return store.ErrClosed
	}
	return <-p.done
}
