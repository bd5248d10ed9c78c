package contents

import (
	"fmt"
	"testing"

	"github.com/kvconn/kvconn/internal/daemon/models"
	"github.com/kvconn/kvconn/internal/tenantfile"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
)

// A file may name thousands.
func TestNamedTenantsAreBounded(t *testing.T) {
	names := []tenantfile.Tenant{{Name: models.Other, ID: tenants.ID{0xff}}}
	for i := range 3 * models.MaxModels {
		names = append(names, tenantfile.Tenant{Name: fmt.Sprint("t", i), ID: tenants.ID{byte(i), 1}})
	}
	of := func(id tenants.ID) tenants.Tenant {
		return tenants.Tenant{ID: id, Records: 1, Bytes: int64(id[0]) << 20}
	}
	for n, want := range map[int]int{0: 0, 3: 3, len(names): models.MaxModels + 1} {
		got := Tenants(names[:n], of)
		if len(got) != want {
			t.Fatalf("%d of %d tenants, want %d", len(got), n, want)
		}
		records, bytes, seen := int64(0), int64(0), make(map[string]bool)
		for _, g := range got {
			records, bytes = records+g.Records, bytes+g.Bytes
			if seen[g.Tenant] {
				t.Errorf("%s is there twice", g.Tenant)
			}
			seen[g.Tenant] = true
		}
		all := int64(0)
		for i := range names[:n] {
			all += of(names[i].ID).Bytes
		}
		if records != int64(n) || bytes != all {
			t.Errorf("%d records of %d bytes, want %d of %d", records, bytes, n, all)
		}
	}
}
