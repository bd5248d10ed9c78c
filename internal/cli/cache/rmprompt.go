package cache

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/prompt"
)

// runPrompt removes one prompt.
func (c *rmCmd) runPrompt(ctx context.Context, daemon *client, std *terminal.Streams) error {
	if c.Model == "" {
		return errors.New("--tokens needs --model: a prompt is removed from the namespaces of a model")
	}
	tokens, err := readTokens(ctx, std.In, c.Model, c.Tokens, c.Engine)
	if err != nil {
		return err
	}
	q := admin.PromptRequest{Prompt: prompt.Prompt{Model: c.Model, Tokens: tokens, Salt: c.Salt}, DryRun: c.DryRun || !c.Yes}
	r := new(admin.PromptRemoval)
	if err := daemon.post(ctx, "/v1/prompts/remove", q, r); err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, r)
	} else {
		err = printPromptRemoval(std.Out, len(tokens), r)
	}
	switch {
	case err != nil:
		return err
	case len(r.Namespaces) == 0:
		return fmt.Errorf("the store has no model %q: 'kvconnd cache ls' lists those that it has", c.Model)
	case !c.DryRun && !c.Yes:
		return errors.New("nothing was removed: give --yes to remove it")
	}
	return promptLeft(r)
}

func printPromptRemoval(out io.Writer, tokens int, r *admin.PromptRemoval) error {
	verb := "removed"
	if r.DryRun {
		verb = "to remove"
	}
	for i := range r.Namespaces {
		n := &r.Namespaces[i]
		fmt.Fprintf(out, "namespace %s, %s: ", n.Digest[:min(len(n.Digest), shortDigest)], printable(n.Engine))
		switch {
		case n.OwnKeys:
			fmt.Fprintln(out, "its engines name blocks by hashes of their own: which are the prompt's is not known")
			continue
		case n.Blocks == 0:
			fmt.Fprintf(out, "%d tokens are less than a block\n", tokens)
			continue
		}
		fmt.Fprintf(out, "%s: %d records of %d blocks of the prompt and %d that continue it, %s", verb, n.Records, n.Blocks, n.Continuations, config.Bytes(n.Bytes))
		if !r.DryRun {
			fmt.Fprintf(out, "; %d from host memory", n.HostRemoved)
		}
		fmt.Fprintln(out)
	}
	if r.Bucket && !r.DryRun {
		fmt.Fprintln(out, bucketUntouched)
	}
	return nil
}

// promptLeft says what of a prompt may still be there.
func promptLeft(r *admin.PromptRemoval) error {
	for i := range r.Namespaces {
		switch n := &r.Namespaces[i]; {
		case n.OwnKeys:
			return fmt.Errorf("namespace %s may have the prompt: which of its blocks are the prompt's is not known; remove the namespace", n.Digest)
		case n.Incomplete:
			return errors.New("the store does not know all of its records: it is still looking for them after a journal was lost, cannot read a segment, or has no key " +
				"for some; those are not removed, give the command again when that has ended")
		}
	}
	if r.Unknown > 0 {
		return fmt.Errorf("%d namespaces have lost their manifest and may have the prompt, until an engine brings it again: 'kvconnd cache ls' lists them", r.Unknown)
	}
	return nil
}
