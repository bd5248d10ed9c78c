package contents

import (
	"cmp"
	"slices"

	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// Tenant is what a store holds of one tenant that has a name.
type Tenant struct {
	Tenant  string `label:"tenant"`
	Records int64  `metric:"records" help:"Records on disk, by tenant of the tenants file."`
	// MaxBytes is the tenant's own quota, 0 if it has none.
	MaxBytes int64 `metric:"max_bytes" help:"Quota on disk of a tenant of the tenants file, 0 if it has none of its own."`
	// Bytes are those of slots.
	Bytes int64 `metric:"bytes" help:"Bytes on disk, headers included, by tenant of the tenants file; the largest tenants by name, all others with a name as one."`
}

// Tenants are the named ones, the largest first, at most [models.MaxModels] and the rest as one: what a metric may have.
func Tenants(names []tenantfile.Tenant, of func(tenants.ID) tenants.Tenant) []Tenant {
	list := make([]Tenant, len(names))
	for i, n := range names {
		t := of(n.ID)
		list[i] = Tenant{Tenant: n.Name, Records: t.Records, Bytes: t.Bytes, MaxBytes: n.MaxBytes}
	}
	if len(list) <= models.MaxModels {
		return list
	}
	slices.SortFunc(list, func(a, b Tenant) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Tenant, b.Tenant)) })
	// A tenant may be named as the rest is named: there is one series of a name.
	kept, other := make([]Tenant, 0, models.MaxModels+1), Tenant{Tenant: models.Other}
	for _, t := range list {
		if len(kept) < models.MaxModels && t.Tenant != models.Other {
			kept = append(kept, t)
			continue
		}
		other.Records += t.Records
		other.Bytes += t.Bytes
		other.MaxBytes += t.MaxBytes
	}
	return append(kept, other)
}
