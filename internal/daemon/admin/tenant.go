package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/kvconn/kvconn/internal/httpserve"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/purge"
)

// Tenant is what the disk holds of one tenant, in all namespaces.
type Tenant struct {
	// Digest has 16 digits: zeros stand for requests without cache_salt.
	Digest string `json:"digest"`
	// Name is that of the tenants file, or empty.
	Name string `json:"name,omitempty"`
	// Kind is none for requests without cache_salt, unknown for records of format 1, which does not say whose they are,
	// rest for tenants that are too many to be told apart, and else tenant.
	Kind    string `json:"kind"`
	Records int64  `json:"records"`
	// Bytes are those of slots: payloads and headers, in whole pages.
	Bytes int64 `json:"bytes"`
	// MaxBytes is its quota, 0 if it has none.
	MaxBytes int64 `json:"max_bytes"`
	// Hits are blocks that look-ups found since the daemon's start, or since the tenant had no record; LastHit is when.
	Hits    uint64     `json:"hits"`
	LastHit *time.Time `json:"last_hit,omitempty"`
}

// TenantList is the answer of GET /v1/tenants.
type TenantList struct {
	// Tenants are those with records and those that the tenants file names, the largest first.
	Tenants []Tenant `json:"tenants"`
}

// The kinds of tenants.
const (
	kindTenant  = "tenant"
	kindNone    = "none"
	kindUnknown = "unknown"
	kindRest    = "rest"
)

func kindOf(id tenants.ID) string {
	switch id {
	case tenants.ID{}:
		return kindNone
	case tenants.Unknown:
		return kindUnknown
	case tenants.Rest:
		return kindRest
	}
	return kindTenant
}

// ServeTenants answers with the tenants.
func (s *Service) ServeTenants(w http.ResponseWriter, _ *http.Request) {
	httpserve.WriteJSON(w, http.StatusOK, s.tenants(), "  ")
}

func (s *Service) tenants() *TenantList {
	file := s.o.Tenants.File()
	quotas := file.Quotas()
	names := make(map[tenants.ID]string, len(file.Names()))
	for _, t := range file.Names() {
		names[t.ID] = t.Name
	}
	l := &TenantList{Tenants: []Tenant{}}
	for _, t := range s.o.Disk.Tenants() {
		l.Tenants = append(l.Tenants, tenantOf(&t, names[t.ID], quotas.Of(t.ID)))
		delete(names, t.ID)
	}
	for id, name := range names { // those without records
		l.Tenants = append(l.Tenants, tenantOf(&tenants.Tenant{ID: id}, name, quotas.Of(id)))
	}
	slices.SortFunc(l.Tenants, func(a, b Tenant) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Digest, b.Digest))
	})
	return l
}

func tenantOf(t *tenants.Tenant, name string, maxBytes int64) Tenant {
	a := Tenant{Digest: t.ID.String(), Name: name, Kind: kindOf(t.ID), Records: t.Records, Bytes: t.Bytes, MaxBytes: maxBytes, Hits: t.Hits}
	if !t.LastHit.IsZero() {
		a.LastHit = &t.LastHit
	}
	return a
}

// TenantRemoval is the answer of DELETE /v1/tenants/{digest}.
type TenantRemoval struct {
	Digest string `json:"digest"`
	// Result is what was removed from the disk: durably, if the request has not failed.
	purge.Result
	// HostRemoved records were in the host tier, which does not know tenants: it let go of all.
	HostRemoved int `json:"host_removed"`
	// Unknown records of format 1 are still there: some of them may be the tenant's.
	Unknown int64 `json:"unknown"`
	// Bucket says that the daemon has an object tier. That was not touched, and loads may bring its records back.
	Bucket bool `json:"bucket"`
}

// ServeTenantRemoval removes what the disk holds of one tenant, and all of the host tier.
func (s *Service) ServeTenantRemoval(w http.ResponseWriter, r *http.Request) {
	id, err := tenantfile.ParseID(r.PathValue("digest"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	removal, err := s.removeTenant(r.Context(), id)
	switch {
	case err == nil:
		s.o.Logger.Info("a tenant's records were removed on request", "tenant", removal.Digest, "removed", removal.Removed, "left", removal.Left,
			"host_removed", removal.HostRemoved)
		httpserve.WriteJSON(w, http.StatusOK, removal, "  ")
	case errors.Is(err, store.ErrBusy):
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		s.o.Logger.Warn("a tenant's records could not be removed on request", "tenant", removal.Digest, "err", err,
			"remedy", "ask for it again; if it goes on, look for I/O errors in the kernel's log")
		http.Error(w, fmt.Sprintf("%d records were removed, and may be back after a crash: %v", removal.Removed, err), http.StatusInternalServerError)
	}
}

func (s *Service) removeTenant(ctx context.Context, id tenants.ID) (*TenantRemoval, error) {
	r := &TenantRemoval{Digest: id.String(), Bucket: s.o.Bucket}
	var err error
	if r.Result, err = s.o.Disk.PurgeTenant(ctx, id, leaseWait); err != nil {
		return r, err
	}
	for _, t := range s.o.Disk.Tenants() {
		if t.ID == tenants.Unknown && id != tenants.Unknown {
			r.Unknown = t.Records
		}
	}
	// Also if the disk has nothing: memory may have what the disk has evicted.
	for end := time.Now().Add(fillWait); ; {
		filling := 0
		for _, ns := range s.o.Disk.Namespaces() {
			n, left := s.o.Host.Forget(ns.Digest)
			r.HostRemoved, filling = r.HostRemoved+n, filling+left
		}
		if filling == 0 || ctx.Err() != nil || time.Now().After(end) {
			return r, nil
		}
		time.Sleep(fillPause)
	}
}
