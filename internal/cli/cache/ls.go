package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
)

// lsCmd is `kvconnd cache ls`.
type lsCmd struct {
	where
	Model string `name:"model" placeholder:"NAME" help:"List the namespaces of this model alone."`
	// Tenants has the list by tenant instead.
	Tenants bool `name:"tenants" help:"List tenants instead, those with the most bytes first."`
	JSON    bool `name:"json" help:"Print the list as JSON, with whole digests."`
}

// Help is shown below the command's summary.
func (*lsCmd) Help() string {
	return `A namespace has all records that engines of one configuration can share: model and weights, engine
version, dtype, block size, parallel sizes and more. Records and bytes are those on disk, counted now. Hits are
blocks that look-ups found on disk, and the last use is the last hit or save, both since the daemon's start.

A tenant has the records of all requests with one cache_salt, in all namespaces. Its bytes are those that the
records take on disk, headers included. Names are those of the daemon's --tenants-file.`
}

// Run prints the list.
func (c *lsCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	if c.Tenants {
		return c.runTenants(ctx, daemon, std)
	}
	l, err := daemon.namespaces(ctx)
	if err != nil {
		return err
	}
	if c.Model != "" {
		l.Namespaces = choose(l.Namespaces, func(n *admin.Namespace) bool { return n.Model == c.Model })
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, l)
	}
	return printList(std.Out, l.Namespaces)
}

// runTenants prints the list by tenant.
func (c *lsCmd) runTenants(ctx context.Context, daemon *client, std *terminal.Streams) error {
	if c.Model != "" {
		return errors.New("--tenants is the sum of all models: it goes without --model")
	}
	l, err := daemon.tenants(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, l)
	}
	return printTenants(std.Out, l.Tenants, time.Now())
}

// choose returns the namespaces that want says.
func choose(all []admin.Namespace, want func(*admin.Namespace) bool) []admin.Namespace {
	chosen := make([]admin.Namespace, 0, len(all))
	for i := range all {
		if want(&all[i]) {
			chosen = append(chosen, all[i])
		}
	}
	return chosen
}

// shortDigest is how much of a digest is shown: enough to name a namespace.
const shortDigest = 12

// printList writes models, and below each its namespaces.
func printList(out io.Writer, list []admin.Namespace) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "nothing")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL, NAMESPACE\tRECORDS\tBYTES\tHITS\tLAST USE\tOPEN\tENGINE\tDTYPE\tBLOCK\tTP\tPP")
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].Model == list[0].Model {
			n++
		}
		printModel(w, list[:n])
		list = list[n:]
	}
	return w.Flush()
}

func printModel(w io.Writer, list []admin.Namespace) {
	records, size, sessions := sum(list)
	now := time.Now()
	hits, last := uses(list)
	fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\t\t\t\t\t\n", modelName(list[0].Model), records, config.Bytes(size), hits, ago(last, now), open(sessions))
	for i := range list {
		n := &list[i]
		fmt.Fprintf(w, "  %s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", n.Digest[:min(len(n.Digest), shortDigest)], n.Records, config.Bytes(n.Bytes),
			n.Hits, ago(n.LastUse, now), open(n.Sessions), printable(n.Engine), printable(n.KVDType), n.BlockSize, n.TensorParallel, n.PipelineParallel)
	}
}

func sum(list []admin.Namespace) (records, size int64, sessions int) {
	for i := range list {
		records += list[i].Records
		size += list[i].Bytes
		sessions += list[i].Sessions
	}
	return records, size, sessions
}

// uses are the hits of namespaces, and their last use.
func uses(list []admin.Namespace) (hits uint64, last *time.Time) {
	for i := range list {
		hits += list[i].Hits
		if t := list[i].LastUse; t != nil && (last == nil || t.After(*last)) {
			last = t
		}
	}
	return hits, last
}

func open(sessions int) string {
	if sessions > 0 {
		return "yes"
	}
	return "no"
}

func modelName(name string) string {
	if name == "" {
		return "(manifest lost)"
	}
	return printable(name)
}

// printable keeps what engines call things from moving a terminal's cursor, or the columns.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
