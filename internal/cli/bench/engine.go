package bench

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/kvconn/kvconn/internal/bench/enginebench"
	"github.com/kvconn/kvconn/internal/cli/terminal"
)

type engineCmd struct {
	URL          string        `name:"url" required:"" placeholder:"URL" help:"Endpoint to measure: an engine, or a router of engines, such as http://127.0.0.1:8000."`
	Model        string        `name:"model" placeholder:"NAME" help:"Model that requests name. Default: the first that the endpoint lists."`
	APIKey       string        `name:"api-key" env:"OPENAI_API_KEY" placeholder:"KEY" help:"The endpoint's key. Set it in the environment: a command line can be seen by others."`
	Compare      string        `name:"compare" placeholder:"URL" help:"Another endpoint, asked in turn with the first."`
	CompareModel string        `name:"compare-model" placeholder:"NAME" help:"Model that its requests name. Default: the first that it lists."`
	CompareKey   string        `name:"compare-api-key" env:"KVCONN_BENCH_COMPARE_API_KEY" placeholder:"KEY" help:"Its key. Set it in the environment: a command line can be seen by others."`
	Chat         bool          `name:"chat" help:"Ask /v1/chat/completions, and not /v1/completions."`
	Tokens       []int         `name:"tokens" default:"1000,4000" placeholder:"N,..." help:"Lengths of prompts in tokens (default 1000,4000)."`
	Prompts      int           `name:"prompts" default:"8" placeholder:"N" help:"Prompts of each length (default 8)."`
	OutputTokens int           `name:"output-tokens" default:"4" placeholder:"N" help:"Tokens of each answer at most (default 4)."`
	FillTokens   int           `name:"fill-tokens" default:"0" placeholder:"N" help:"Tokens of other prompts that are asked before prompts are asked again: more than the GPU's own cache holds measures the tiers below it (default 0)."`
	Pause        time.Duration `name:"pause" default:"2s" placeholder:"D" help:"Rest before prompts are asked again, so that saves end (default 2s)."`
	Between      string        `name:"between" placeholder:"COMMAND" help:"Line of the shell that is run before prompts are asked again, such as one that starts engine and daemon again."`
	Timeout      time.Duration `name:"timeout" default:"5m" placeholder:"D" help:"Time that a request may take, and an endpoint until it answers again after --between (default 5m)."`
	Seed         uint64        `name:"seed" default:"0" placeholder:"N" help:"Makes the prompts. The second run with one seed finds its prompts cached. Default: a random one, which is printed."`
	JSON         bool          `name:"json" help:"Print the result as JSON."`
}

// waitDelay is how long what a command has left running may keep its output open.
const waitDelay = 5 * time.Second

// Help is shown below the command's summary.
func (*engineCmd) Help() string {
	return `Asks prompts that the endpoint has never seen, one at a time, then asks all of them again, and
compares the times to the first token. The endpoint may be any that speaks the OpenAI API and streams; it needs no kvconn.
With --compare every prompt has one of the same length at the other endpoint, asked directly before or after, and ratios are
taken pair by pair: so a machine that is busy with something else disturbs both. The two get different texts, as they may
share a cache. Without --fill-tokens the prompts may still be in the GPU's own cache when they are asked again.

What survives a restart is measured with one in between. The command has to end after the old engine has:

  kvconnd bench engine --url http://127.0.0.1:8000 --between 'systemctl restart vllm kvconnd'`
}

// Validate reports what cannot be measured.
func (c *engineCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{
		"prompts": float64(c.Prompts), "output-tokens": float64(c.OutputTokens), "timeout": float64(c.Timeout),
	})
}

// Run asks the endpoints.
func (c *engineCmd) Run(ctx context.Context, std *terminal.Streams) error {
	o := enginebench.Options{
		Engine: enginebench.Endpoint{URL: c.URL, Model: c.Model, Key: c.APIKey},
		Chat:   c.Chat, Tokens: c.Tokens, Prompts: c.Prompts, OutputTokens: c.OutputTokens, FillTokens: c.FillTokens,
		Pause: c.Pause, Timeout: c.Timeout, Seed: c.Seed,
	}
	if c.Compare != "" {
		o.Compare = &enginebench.Endpoint{URL: c.Compare, Model: c.CompareModel, Key: c.CompareKey}
	}
	if o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) // short enough to type
	}
	if o.Pause == 0 {
		o.Pause = -1
	}
	if c.Between != "" {
		o.Between = func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, "/bin/sh", "-c", c.Between)
			cmd.Stdout, cmd.Stderr = std.Err, std.Err // standard output is the result's
			cmd.WaitDelay = waitDelay
			return cmd.Run()
		}
	}
	bar := terminal.NewProgress(std.Err, "")
	o.Progress = func(step string, done, total int) {
		if step != bar.What() {
			bar.Finish()
			bar = terminal.NewProgress(std.Err, step)
		}
		bar.Set(int64(done), int64(total))
	}
	r, err := enginebench.Run(ctx, o)
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	return r.Print(std.Out)
}
