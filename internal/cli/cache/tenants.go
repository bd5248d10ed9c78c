package cache

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/tenantfile"
)

// tenants asks for the list of tenants.
func (c *client) tenants(ctx context.Context) (*admin.TenantList, error) {
	l := new(admin.TenantList)
	return l, c.ask(ctx, http.MethodGet, "/v1/tenants", l)
}

// removeTenant has one tenant removed.
func (c *client) removeTenant(ctx context.Context, digest string) (*admin.TenantRemoval, error) {
	r := new(admin.TenantRemoval)
	return r, c.ask(ctx, http.MethodDelete, "/v1/tenants/"+url.PathEscape(digest), r)
}

// printTenants writes a line for each tenant.
func printTenants(out io.Writer, list []admin.Tenant, now time.Time) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "nothing")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "TENANT\tDIGEST\tRECORDS\tBYTES\tQUOTA\tHITS\tLAST HIT")
	for i := range list {
		t := &list[i]
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%d\t%s\n", tenantName(t), t.Digest[:min(len(t.Digest), shortDigest)], t.Records, config.Bytes(t.Bytes), quotaText(t), t.Hits, ago(t.LastHit, now))
	}
	return w.Flush()
}

func quotaText(t *admin.Tenant) string {
	if t.MaxBytes == 0 {
		return "-"
	}
	return config.Bytes(t.MaxBytes).String()
}

func tenantName(t *admin.Tenant) string {
	if t.Name != "" {
		return printable(t.Name)
	}
	switch t.Kind {
	case "none":
		return "(no cache_salt)"
	case "unknown":
		return "(unknown)"
	case "rest":
		return "(too many to tell)"
	}
	return "-"
}

// ago is how long ago something was, as people say it.
func ago(t *time.Time, now time.Time) string {
	const day = 24 * time.Hour
	if t == nil {
		return "-"
	}
	d := max(now.Sub(*t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	}
	return fmt.Sprintf("%dd ago", d/day)
}

// runTenant removes a tenant.
func (c *rmCmd) runTenant(ctx context.Context, daemon *client, std *terminal.Streams) error {
	l, err := daemon.tenants(ctx)
	if err != nil {
		return err
	}
	chosen, err := c.chooseTenant(l.Tenants)
	if err != nil {
		return err
	}
	if goOn, err := c.confirmed(func() error { return c.announceTenant(chosen, std) }); !goOn {
		return err
	}
	r, err := daemon.removeTenant(ctx, chosen.Digest)
	if err != nil {
		return fmt.Errorf("tenant %s: %w", chosen.Digest, err)
	}
	return c.reportTenant(r, std)
}

// chooseTenant finds the tenant to remove: by its name, the beginning of its digest, or its salt.
func (c *rmCmd) chooseTenant(all []admin.Tenant) (*admin.Tenant, error) {
	digest := strings.ToLower(c.Tenant)
	if c.CacheSaltFile != "" {
		id, err := tenantfile.ReadSalt(c.CacheSaltFile)
		if err != nil {
			return nil, err
		}
		digest = id.String()
	}
	var found []*admin.Tenant
	for i := range all {
		t := &all[i]
		if c.Tenant != "" && t.Name == c.Tenant {
			return t, nil
		}
		if len(digest) >= leastDigest && strings.HasPrefix(t.Digest, digest) {
			found = append(found, t)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("--tenant %s: %d tenants begin so: give more digits", c.Tenant, len(found))
	case c.CacheSaltFile != "":
		return &admin.Tenant{Digest: digest}, nil // host memory may have some of it
	}
	if id, err := tenantfile.ParseID(digest); err == nil {
		return &admin.Tenant{Digest: id.String()}, nil
	}
	return nil, fmt.Errorf("no tenant has the name or digest %q: 'kvconnd cache ls --tenants' lists them; of a digest give at least %d digits", c.Tenant, leastDigest)
}

// announceTenant says what is to be removed.
func (c *rmCmd) announceTenant(t *admin.Tenant, std *terminal.Streams) error {
	if c.JSON {
		return terminal.PrintJSON(std.Out, admin.TenantList{Tenants: []admin.Tenant{*t}})
	}
	if err := printTenants(std.Out, []admin.Tenant{*t}, time.Now()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(std.Out, "\nto remove: %d records of %s on disk, and all that host memory holds, of every tenant\n", t.Records, config.Bytes(t.Bytes))
	return err
}

// reportTenant says what was removed. It fails if some of it is left.
func (c *rmCmd) reportTenant(r *admin.TenantRemoval, std *terminal.Streams) error {
	if c.JSON {
		if err := terminal.PrintJSON(std.Out, r); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(std.Out, "removed: %d records from disk; %d records of all tenants from host memory\n", r.Removed, r.HostRemoved)
		if r.Unknown > 0 {
			fmt.Fprintf(std.Out, "%d records are of the store's first format, which does not say whose they are: some may be this tenant's\n", r.Unknown)
		}
		if r.Bucket {
			fmt.Fprintln(std.Out, bucketUntouched)
		}
	}
	return unfinished(r.Incomplete, "has no key for some, or has more tenants than it can tell apart", r.Left)
}
