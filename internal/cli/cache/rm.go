package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
)

// rmCmd is `kvconnd cache rm`.
type rmCmd struct {
	where
	Model     string `name:"model" xor:"what" required:"" placeholder:"NAME" help:"Remove all namespaces of this model, or with --tokens one prompt from them."`
	Namespace string `name:"namespace" xor:"what" required:"" placeholder:"DIGEST" help:"Remove this namespace: its digest, or the beginning of it that no other has."`
	All       bool   `name:"all" xor:"what" required:"" help:"Remove everything."`
	// A salt is in a file, since a command line can be seen by others.
	Tenant        string `name:"tenant" xor:"what" required:"" placeholder:"NAME|DIGEST" help:"Remove this tenant in all namespaces: its name in the daemon's tenants file, its digest, or the beginning of that that no other has."`
	CacheSaltFile string `name:"cache-salt-file" xor:"what" required:"" placeholder:"FILE" help:"Remove the tenant whose cache_salt is in this file."`
	Tokens        string `name:"tokens" placeholder:"FILE" help:"Remove the blocks of this prompt, and those that continue it: a JSON list of token ids, or text if --engine is given; - for the standard input. It needs --model."`
	Engine        string `name:"engine" placeholder:"URL" help:"Engine that makes tokens of text, by its /tokenize: http://127.0.0.1:8000."`
	Salt          string `name:"cache-salt" placeholder:"SALT" help:"The cache_salt that requests with the prompt have."`
	Yes           bool   `name:"yes" short:"y" help:"Remove. Without it the command says what it would remove, and fails."`
	DryRun        bool   `name:"dry-run" short:"n" help:"Say what would be removed."`
	JSON          bool   `name:"json" help:"Print what was removed of each namespace as JSON."`
}

// Help is shown below the command's summary.
func (*rmCmd) Help() string {
	return `Engines may go on. What they save meanwhile stays, and what loads hold is waited for, ten seconds at most for each
namespace; if some of it is left, the exit status is not 0, and the command can be given again.
When it ends the removal is durable: nothing comes back after a crash. Payloads stay in the
store's files, unused, until their place is written again. The object tier is not touched:
what nodes share in a bucket is found there again.

With --tokens the content of one prompt goes: all of its whole blocks, those at its beginning that
other prompts share, too, and all blocks that go on from its last one, in all namespaces of the
model. Prompts that share its beginning are found again once that is computed and saved again.

Host memory does not know whose a record is: with a tenant all of it goes, and is read from disk again.`
}

// Run removes.
func (c *rmCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	if c.Tokens != "" {
		return c.runPrompt(ctx, daemon, std)
	}
	if c.Tenant != "" || c.CacheSaltFile != "" {
		return c.runTenant(ctx, daemon, std)
	}
	return c.run(ctx, daemon, std)
}

func (c *rmCmd) run(ctx context.Context, daemon *client, std *terminal.Streams) error {
	l, err := daemon.namespaces(ctx)
	if err != nil {
		return err
	}
	chosen, err := c.choose(l.Namespaces)
	if err != nil {
		return err
	}
	if goOn, err := c.confirmed(func() error { return c.announce(chosen, std) }); !goOn {
		return err
	}
	return c.remove(ctx, daemon, chosen, std)
}

// confirmed says what is to be removed, unless JSON alone is wanted of a removal that goes on, and reports whether it goes on.
func (c *rmCmd) confirmed(announce func() error) (bool, error) {
	if !c.JSON || c.DryRun || !c.Yes {
		if err := announce(); err != nil {
			return false, err
		}
	}
	switch {
	case c.DryRun:
		return false, nil
	case !c.Yes:
		return false, errors.New("nothing was removed: give --yes to remove it")
	}
	return true, nil
}

// leastDigest is the shortest beginning of a digest that names a namespace to remove.
const leastDigest = 8

// choose returns the namespaces to remove. There is at least one.
func (c *rmCmd) choose(all []admin.Namespace) ([]admin.Namespace, error) {
	switch {
	case c.All:
		return choose(all, func(n *admin.Namespace) bool { return n.Records > 0 }), nil
	case c.Model != "":
		chosen := choose(all, func(n *admin.Namespace) bool { return n.Model == c.Model })
		if len(chosen) == 0 {
			return nil, fmt.Errorf("the store has no model %q: 'kvconnd cache ls' lists those that it has", c.Model)
		}
		return chosen, nil
	}
	digest := strings.ToLower(c.Namespace)
	if len(digest) < leastDigest {
		return nil, fmt.Errorf("--namespace %q: give at least %d digits", c.Namespace, leastDigest)
	}
	chosen := choose(all, func(n *admin.Namespace) bool { return strings.HasPrefix(n.Digest, digest) })
	switch len(chosen) {
	case 0:
		return nil, fmt.Errorf("the store has no namespace %s: 'kvconnd cache ls' lists those that it has", c.Namespace)
	case 1:
		return chosen, nil
	}
	return nil, fmt.Errorf("--namespace %s: %d namespaces begin so: give more digits", c.Namespace, len(chosen))
}

// announce says what is to be removed.
func (c *rmCmd) announce(chosen []admin.Namespace, std *terminal.Streams) error {
	if c.JSON {
		return terminal.PrintJSON(std.Out, admin.List{Namespaces: chosen})
	}
	if err := printList(std.Out, chosen); err != nil {
		return err
	}
	records, size, _ := sum(chosen)
	_, err := fmt.Fprintf(std.Out, "\nto remove: %d records of %s in %d namespaces\n", records, config.Bytes(size), len(chosen))
	return err
}

// remove removes one namespace after the other.
func (c *rmCmd) remove(ctx context.Context, daemon *client, chosen []admin.Namespace, std *terminal.Streams) error {
	done := make([]*admin.Removal, 0, len(chosen))
	total := admin.Removal{}
	for i := range chosen {
		r, err := daemon.remove(ctx, chosen[i].Digest)
		if errors.Is(err, errGone) { // forgotten meanwhile, with its last record
			continue
		}
		if err != nil {
			return fmt.Errorf("namespace %s: %w (%d namespaces were removed before it)", chosen[i].Digest, err, len(done))
		}
		done = append(done, r)
		total.Removed, total.Left, total.HostRemoved = total.Removed+r.Removed, total.Left+r.Left, total.HostRemoved+r.HostRemoved
		total.Incomplete, total.Bucket = total.Incomplete || r.Incomplete, total.Bucket || r.Bucket
	}
	if c.JSON {
		if err := terminal.PrintJSON(std.Out, done); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(std.Out, "removed: %d records from disk, %d from host memory\n", total.Removed, total.HostRemoved)
		if total.Bucket {
			fmt.Fprintln(std.Out, bucketUntouched)
		}
	}
	return unfinished(total.Incomplete, "or has no key for some", total.Left)
}

// bucketUntouched is said where a removal leaves an object tier as it is.
const bucketUntouched = "the object tier was not touched: what nodes share in the bucket is found there again"

// unfinished is the error of a removal that is not complete, nil if it is: the store does not know all of its records, for which why is the last
// possible reason, or loads hold some.
func unfinished(incomplete bool, why string, left int64) error {
	switch {
	case incomplete:
		return fmt.Errorf("the store does not know all of its records: it is still looking for them after a journal was lost, cannot read a segment, %s; "+
			"those are not removed, give the command again when that has ended", why)
	case left > 0:
		return fmt.Errorf("%d records are left: loads hold them; give the command again", left)
	}
	return nil
}
