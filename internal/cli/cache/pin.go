package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
)

// what is chosen to pin or to unpin.
type what struct {
	Model     string `name:"model" placeholder:"NAME" help:"All namespaces of this model, or with --tokens one prompt in them."`
	Namespace string `name:"namespace" placeholder:"DIGEST" help:"This namespace: its digest, or the beginning of it that no other has."`
	Tokens    string `name:"tokens" placeholder:"FILE" help:"The blocks of this prompt: a JSON list of token ids, or text if --engine is given; - for the standard input. It needs --model."`
	Engine    string `name:"engine" placeholder:"URL" help:"Engine that makes tokens of text, by its /tokenize: http://127.0.0.1:8000."`
	Salt      string `name:"cache-salt" placeholder:"SALT" help:"The cache_salt that requests with the prompt have."`
}

func (c *what) check() error {
	switch {
	case (c.Model == "") == (c.Namespace == ""):
		return errors.New("give --model or --namespace")
	case c.Tokens != "" && c.Model == "":
		return errors.New("--tokens needs --model: a prompt is one of a model")
	}
	return nil
}

// prompt reads the prompt.
func (c *what) prompt(ctx context.Context, in io.Reader) (prompt.Prompt, error) {
	tokens, err := readTokens(ctx, in, c.Model, c.Tokens, c.Engine)
	if err == nil && len(tokens) == 0 {
		err = errors.New("the prompt is empty")
	}
	return prompt.Prompt{Model: c.Model, Tokens: tokens, Salt: c.Salt}, err
}

// pinCmd is `kvconnd cache pin`.
type pinCmd struct {
	where
	what
	For    time.Duration `name:"for" default:"24h" placeholder:"TIME" help:"How long: 1h, 24h, 744h at most (default 24h)."`
	DryRun bool          `name:"dry-run" short:"n" help:"Say what would be pinned."`
	JSON   bool          `name:"json" help:"Print the new pins as JSON."`
}

// Help is shown below the command's summary.
func (*pinCmd) Help() string {
	return `The records that the disk has now are not evicted until the time is over, nor after a restart before that. What is saved
later is not pinned. At most pin_max_percent of the store's cap can be pinned; pins that do not fit are
refused as a whole. Only where whole segments must go (a lower cap, a file system that is too full,
records of another size) and each has pinned records, some are evicted all the same.`
}

// Run pins.
func (c *pinCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	if err := c.check(); err != nil {
		return err
	}
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	q := admin.PinRequest{Prompt: prompt.Prompt{Model: c.Model}, ForS: c.For.Seconds(), DryRun: c.DryRun}
	if c.Tokens != "" {
		if q.Prompt, err = c.prompt(ctx, std.In); err != nil {
			return err
		}
	}
	if c.Namespace != "" {
		if q.Namespace, err = daemon.digest(ctx, c.Namespace); err != nil {
			return err
		}
	}
	l := new(admin.PinList)
	if err := daemon.post(ctx, "/v1/pins", q, l); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, l)
	}
	return printPins(std.Out, l)
}

// digest finds the whole digest of a namespace.
func (c *client) digest(ctx context.Context, beginning string) (string, error) {
	l, err := c.namespaces(ctx)
	if err != nil {
		return "", err
	}
	chosen, err := (&rmCmd{Namespace: beginning}).choose(l.Namespaces)
	if err != nil {
		return "", err
	}
	return chosen[0].Digest, nil
}

// unpinCmd is `kvconnd cache unpin`.
type unpinCmd struct {
	where
	what
	IDs  []string `arg:"" name:"pin" optional:"" help:"Pins to end, as 'kvconnd cache pins' names them."`
	All  bool     `name:"all" help:"End all pins."`
	JSON bool     `name:"json" help:"Print the pins that are left as JSON."`
}

// Help is shown below the command's summary.
func (*unpinCmd) Help() string {
	return `Records stay, and are evicted in turn. With --model or --namespace the pins of the whole namespaces end and those of prompts in them,
with --tokens those of that prompt alone. Records that another pin has stay pinned.`
}

// Run ends pins.
func (c *unpinCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	ids := c.IDs
	if len(ids) == 0 {
		if ids, err = c.choose(ctx, daemon, std.In); err != nil {
			return err
		}
	}
	l := new(admin.PinList)
	for _, id := range ids {
		if err := daemon.ask(ctx, http.MethodDelete, "/v1/pins/"+id, l); err != nil {
			return fmt.Errorf("pin %s: %w", id, err)
		}
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, l)
	}
	_, err = fmt.Fprintf(std.Out, "%d pins are ended\n", len(ids))
	return err
}

// choose returns the names of the pins that the flags choose. There is at least one.
func (c *unpinCmd) choose(ctx context.Context, daemon *client, in io.Reader) (ids []string, err error) {
	if !c.All {
		if err := c.check(); err != nil {
			return nil, fmt.Errorf("name pins, or: %w", err)
		}
	}
	l, err := daemon.pins(ctx)
	if err != nil {
		return nil, err
	}
	wanted := func(*admin.Pin) bool { return true }
	switch {
	case c.All:
	case c.Tokens != "":
		if wanted, err = c.ofPrompt(ctx, daemon, in); err != nil {
			return nil, err
		}
	case c.Model != "":
		wanted = func(p *admin.Pin) bool { return p.Model == c.Model }
	default:
		digest, err := daemon.digest(ctx, c.Namespace)
		if err != nil {
			return nil, err
		}
		wanted = func(p *admin.Pin) bool { return p.Namespace == digest }
	}
	for i := range l.Pins {
		if wanted(&l.Pins[i]) {
			ids = append(ids, l.Pins[i].ID)
		}
	}
	if len(ids) == 0 {
		return nil, errors.New("there is no such pin: 'kvconnd cache pins' lists those that there are")
	}
	return ids, nil
}

// ofPrompt returns what says whether a pin is one of a prompt: by the key of its last block.
func (c *unpinCmd) ofPrompt(ctx context.Context, daemon *client, in io.Reader) (func(*admin.Pin) bool, error) {
	p, err := c.prompt(ctx, in)
	if err != nil {
		return nil, err
	}
	all, err := daemon.namespaces(ctx)
	if err != nil {
		return nil, err
	}
	var blocks []string
	for _, n := range all.Namespaces {
		if n.Model != c.Model || n.BlockSize <= 0 {
			continue
		}
		if keys := p.Keys(n.BlockSize); len(keys) > 0 {
			blocks = append(blocks, keys[len(keys)-1].String())
		}
	}
	return func(p *admin.Pin) bool { return p.Model == c.Model && slices.Contains(blocks, p.LastBlock) }, nil
}

// pins asks for the pins.
func (c *client) pins(ctx context.Context) (*admin.PinList, error) {
	l := new(admin.PinList)
	return l, c.ask(ctx, http.MethodGet, "/v1/pins", l)
}

// pinsCmd is `kvconnd cache pins`.
type pinsCmd struct {
	where
	JSON bool `name:"json" help:"Print the list as JSON, with whole digests."`
}

// Run prints the list.
func (c *pinsCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	l, err := daemon.pins(ctx)
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, l)
	}
	return printPins(std.Out, l)
}

func printPins(out io.Writer, l *admin.PinList) error {
	if len(l.Pins) > 0 {
		w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "PIN\tMODEL\tNAMESPACE\tWHAT\tRECORDS\tBYTES\tENDS")
		for i := range l.Pins {
			p := &l.Pins[i]
			of := "all of it"
			if p.Blocks > 0 {
				of = fmt.Sprintf("a prompt of %d blocks", p.Blocks)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", printable(p.ID), modelName(p.Model), p.Namespace[:min(len(p.Namespace), shortDigest)], of, p.Records,
				config.Bytes(p.Bytes), p.Until.Format(time.RFC3339))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(out, "%d records of %s are pinned, %s may be\n", l.Records, config.Bytes(l.Bytes), config.Bytes(l.MaxBytes))
	return err
}
