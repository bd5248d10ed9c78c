package cache

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
	"github.com/kvconn/kvconn/internal/daemon/warm"
)

// warmCmd is `kvconnd cache warm`.
type warmCmd struct {
	where
	what
	JSON bool `name:"json" help:"Print the outcome as JSON."`
}

// Help is shown below the command's summary.
func (*warmCmd) Help() string {
	return `What was used most recently of a model or a namespace comes from the disk; a prompt comes from the fastest tier
that has it, and what a bucket delivers goes to the disk, too. At most three quarters of host memory are
filled. Engines may go on; a warming that is interrupted leaves what it has loaded.`
}

// Run loads, and shows how far it is.
func (c *warmCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	if err := c.check(); err != nil {
		return err
	}
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	q := warm.Request{Prompt: prompt.Prompt{Model: c.Model}}
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
	bar := terminal.NewProgress(std.Err, "warm")
	last, err := daemon.warm(ctx, &q, bar)
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, last)
	} else {
		err = printWarm(std.Out, last)
	}
	switch {
	case err != nil:
		return err
	case last.Error != "":
		return errors.New(last.Error)
	case last.Failed > 0:
		return fmt.Errorf("%d records could not be read, or found no memory", last.Failed)
	}
	return nil
}

func printWarm(out io.Writer, p *warm.Progress) error {
	fmt.Fprintf(out, "loaded: %d records of %s; %d were in memory, %d are on no tier\n", p.Loaded, config.Bytes(p.Bytes), p.Already, p.Missing)
	if p.Promoted > 0 {
		fmt.Fprintf(out, "%d of them came from a slower tier, and went to the disk as well\n", p.Promoted)
	}
	if p.Truncated {
		fmt.Fprintln(out, "there is more of the prompt than host memory may take")
	}
	return nil
}

// warm has records loaded, and returns the last line of the answer.
func (c *client) warm(ctx context.Context, q *warm.Request, bar *terminal.Progress) (*warm.Progress, error) {
	b, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	resp, err := c.open(ctx, http.MethodPost, "/v1/warm", bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	for d := json.NewDecoder(resp.Body); ; {
		p := new(warm.Progress)
		if err := d.Decode(p); err != nil {
			return nil, fmt.Errorf("the answer has no end: %w", err)
		}
		if p.Done {
			return p, nil
		}
		bar.Set(p.Loaded+p.Already+p.Missing+p.Failed, p.Records)
	}
}
