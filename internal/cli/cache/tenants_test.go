package cache

import (
	"encoding/json"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/store/disk/index/tenants"
	"github.com/kvconn/kvconn/store/disk/purge"
)

func digestOf(salt string) string {
	return tenants.Of(connector.Scope{Salt: salt}.Digest()).String()
}

func someTenants() *admin.TenantList {
	hit := time.Now().Add(-50 * time.Hour)
	return &admin.TenantList{Tenants: []admin.Tenant{
		{Digest: digestOf("a"), Name: "team a", Kind: "tenant", Records: 5, Bytes: 5 << 20, MaxBytes: 100e9, Hits: 7, LastHit: &hit},
		{Digest: digestOf("b"), Kind: "tenant", Records: 2, Bytes: 2 << 20},
		{Digest: "0000000000000000", Kind: "none", Records: 1, Bytes: 8192},
		{Digest: "ffffffffffffffff", Kind: "unknown", Name: "", Records: 1, Bytes: 8192},
	}}
}

func TestTenantsAreListed(t *testing.T) {
	var out strings.Builder
	if err := printTenants(&out, someTenants().Tenants, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"team a", digestOf("a")[:12] + " ", "5MiB", "100GB", "7", "2d ago", "(no cache_salt)", "(unknown)"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if err := (&lsCmd{Model: "m"}).runTenants(t.Context(), nil, nil); err == nil || !strings.Contains(err.Error(), "--model") {
		t.Errorf("%v", err)
	}
}

func TestRemoveAsksForTheTenantThatWasChosen(t *testing.T) {
	dir := t.TempDir()
	salt := filepath.Join(dir, "salt")
	if err := os.WriteFile(salt, []byte("b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		cmd       rmCmd
		asked     string
		out, fail string
	}{
		{"without --yes", rmCmd{Tenant: "team a"}, "", "5 records of 5MiB", "nothing was removed"},
		{"dry", rmCmd{Tenant: "team a", DryRun: true, Yes: true}, "", "5 records", ""},
		{"name", rmCmd{Tenant: "team a", Yes: true}, digestOf("a"), "removed: 5 records from disk; 3 records of all tenants", ""},
		{"digest", rmCmd{Tenant: strings.ToUpper(digestOf("b")[:8]), Yes: true}, digestOf("b"), "removed: 5", ""},
		{"salt", rmCmd{CacheSaltFile: salt, Yes: true}, digestOf("b"), "2 records are of the store's first format", ""},
		{"short digest", rmCmd{Tenant: digestOf("b")[:7], Yes: true}, "", "", "no tenant"},
		{"unknown name", rmCmd{Tenant: "team q", Yes: true}, "", "", "no tenant"},
		{"whole digest without records", rmCmd{Tenant: digestOf("c"), Yes: true}, digestOf("c"), "removed: 5", ""},
		{"as JSON", rmCmd{Tenant: "team a", Yes: true, JSON: true}, digestOf("a"), `"removed": 5`, ""},
		{"no salt", rmCmd{CacheSaltFile: filepath.Join(dir, "none"), Yes: true}, "", "", "no such file"},
	} {
		asked := ""
		daemon := fakeDaemon(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_ = json.NewEncoder(w).Encode(someTenants())
				return
			}
			asked = path.Base(r.URL.Path)
			_ = json.NewEncoder(w).Encode(admin.TenantRemoval{Result: purge.Result{Removed: 5}, HostRemoved: 3, Unknown: 2, Bucket: true})
		})
		var out strings.Builder
		err := c.cmd.runTenant(t.Context(), daemon, &terminal.Streams{Out: &out})
		if (err == nil) != (c.fail == "") || err != nil && !strings.Contains(err.Error(), c.fail) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fail)
		}
		if asked != c.asked || !strings.Contains(out.String(), c.out) {
			t.Errorf("%s: asked for %q, want %q; printed\n%s", c.name, asked, c.asked, out.String())
		}
		if c.cmd.JSON && !json.Valid([]byte(out.String())) {
			t.Errorf("%s: no JSON: %s", c.name, out.String())
		}
	}
}

func TestWhatIsLeftOfATenantFailsTheCommand(t *testing.T) {
	for want, r := range map[string]purge.Result{"2 records are left": {Left: 2}, "does not know all": {Incomplete: true}} {
		err := new(rmCmd).reportTenant(&admin.TenantRemoval{Result: r}, &terminal.Streams{Out: new(strings.Builder)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func TestTimesAreSaidAsPeopleDo(t *testing.T) {
	now := time.Now()
	var got []string
	for _, d := range []time.Duration{-time.Hour, 59 * time.Second, time.Minute, 61 * time.Minute, 47 * time.Hour, 49 * time.Hour} {
		at := now.Add(-d)
		got = append(got, ago(&at, now))
	}
	if want := []string{"0s ago", "59s ago", "1m ago", "1h ago", "47h ago", "2d ago"}; !slices.Equal(got, want) || ago(nil, now) != "-" {
		t.Errorf("%v, want %v", got, want)
	}
}
