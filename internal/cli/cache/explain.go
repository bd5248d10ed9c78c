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
	"github.com/kvconn/kvconn/internal/daemon/explain"
)

// ExplainCmd is `kvconnd explain`.
type ExplainCmd struct {
	where
	Model  string `name:"model" required:"" placeholder:"NAME" help:"Model, as 'kvconnd cache ls' names it."`
	Tokens string `name:"tokens" required:"" placeholder:"FILE" help:"The prompt: a JSON list of token ids, or text if --engine is given; - for the standard input."`
	Engine string `name:"engine" placeholder:"URL" help:"Engine that makes tokens of text, by its /tokenize: http://127.0.0.1:8000."`
	Salt   string `name:"cache-salt" placeholder:"SALT" help:"The cache_salt that requests with the prompt have."`
	JSON   bool   `name:"json" help:"Print the answer as JSON."`
}

// Help is shown below the command's summary.
func (*ExplainCmd) Help() string {
	return `For each namespace of the model it says in what it differs from the newest engine's, how many blocks of the prompt are
stored from its start and where, whether there are more after a gap, and whether their load is
slower than their computation. Prompts of LoRA adapters and with images are not known to it.`
}

// Run asks, and prints the answer.
func (c *ExplainCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	tokens, err := readTokens(ctx, std.In, c.Model, c.Tokens, c.Engine)
	if err != nil {
		return err
	}
	a := new(explain.Answer)
	if err := daemon.post(ctx, "/v1/explain", explain.Request{Model: c.Model, Tokens: tokens, Salt: c.Salt}, a); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, a)
	}
	return printAnswer(std.Out, a)
}

// post sends a question and decodes its answer.
func (c *client) post(ctx context.Context, path string, question, answer any) error {
	b, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("encode the question: %w", err)
	}
	return c.send(ctx, http.MethodPost, path, bytes.NewReader(b), answer)
}

// errNoModel is for the exit status: the answer is that there is nothing.
var errNoModel = errors.New("neither the disk nor an engine has this model: 'kvconnd cache ls' lists those that are there")

func printAnswer(out io.Writer, a *explain.Answer) error {
	if len(a.Namespaces) == 0 {
		return errNoModel
	}
	fmt.Fprintf(out, "%s: a prompt of %d tokens\n", printable(a.Model), a.Tokens)
	if a.Reference == "" {
		fmt.Fprintln(out, "No engine with this model is connected.")
	}
	for i := range a.Namespaces {
		printNamespace(out, a, &a.Namespaces[i])
	}
	if a.More > 0 {
		fmt.Fprintf(out, "\n%d more namespaces of the model were not looked at\n", a.More)
	}
	return nil
}

func printNamespace(out io.Writer, a *explain.Answer, n *explain.Namespace) {
	fmt.Fprintf(out, "\nnamespace %s, %s", n.Digest[:min(len(n.Digest), shortDigest)], printable(n.Engine))
	if n.Digest == a.Reference {
		fmt.Fprint(out, ", of the newest engine")
	}
	fmt.Fprintln(out)
	if len(n.Differences) > 0 {
		fmt.Fprintln(out, "  the newest engine cannot use it:")
	}
	for _, d := range n.Differences {
		fmt.Fprintf(out, "    %s is %s here, and %s there\n", printable(d.Field), shortValue(d.Here), shortValue(d.Reference))
	}
	if n.OwnKeys {
		fmt.Fprintln(out, "  its engines name blocks by hashes of their own: which blocks are the prompt's is not known")
		return
	}
	fmt.Fprintf(out, "  %d of %d blocks of %d tokens are stored from the start on\n", n.Stored, n.Blocks, n.BlockSize)
	for _, t := range n.Tiers {
		fmt.Fprintf(out, "    %d on %s, %s\n", t.Blocks, printable(t.Tier), config.Bytes(t.Bytes))
	}
	if n.Stored < n.Blocks {
		printMissing(out, n)
	}
	printPrice(out, n)
}

func printMissing(out io.Writer, n *explain.Namespace) {
	fmt.Fprintf(out, "  block %d is the first that is missing (tokens %d to %d): it was never saved, was evicted, or was removed\n",
		n.Stored, n.Stored*n.BlockSize, (n.Stored+1)*n.BlockSize-1)
	if n.Later > 0 {
		fmt.Fprintf(out, "  %d later blocks are there, and are of no use without it\n", n.Later)
	} else {
		fmt.Fprintln(out, "  no later block is there")
	}
}

func printPrice(out io.Writer, n *explain.Namespace) {
	switch {
	case n.Stored == 0:
	case n.LoadS == 0 || n.PrefillS == 0:
		fmt.Fprintln(out, "  whether their load is worth it is not known: speeds have not been measured")
	case n.LoadS > n.PrefillS:
		fmt.Fprintf(out, "  their load would take %.3gs, longer than their computation, %.3gs: not all of them are offered\n", n.LoadS, n.PrefillS)
	default:
		fmt.Fprintf(out, "  their load would take %.3gs, their computation %.3gs\n", n.LoadS, n.PrefillS)
	}
}

// longestValue is how much of a value is shown.
const longestValue = 60

func shortValue(v string) string {
	if v == "" {
		return "missing"
	}
	if v = printable(v); len(v) > longestValue {
		return v[:longestValue] + "…"
	}
	return v
}
