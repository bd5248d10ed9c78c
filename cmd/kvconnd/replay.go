package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/kvsize"
	"github.com/kvconn/kvconn/router/replay"
	"github.com/kvconn/kvconn/router/replay/agents"
)

type replayCmd struct {
	Trace string `arg:"" placeholder:"TRACE" help:"Trace file, one JSON object a line: timestamp, input_length, output_length, hash_ids; packed by gzip or not. - for standard input. agents:load=0.9,agents=32 generates agents with growing contexts (docs/replay.md)."`

	Policies      []string      `name:"policies" default:"round-robin,load,kv-aware,kv-aware-gpu,conversation,first-turn,cost" placeholder:"A,B" help:"Routing policies to compare: round-robin, load, kv-aware, kv-aware-gpu, conversation, first-turn, cost (default: all these), or any other that the router knows: serve-kv-aware, published/NAME, first-turn/NAME, conversation/NAME."`
	BlockTokens   int           `name:"block-tokens" default:"512" placeholder:"N" help:"Tokens of a block in the trace (default 512)."`
	TimestampUnit time.Duration `name:"timestamp-unit" default:"1ms" placeholder:"D" help:"What the trace's timestamps count (default 1ms)."`

	Ranks        int           `name:"ranks" default:"8" placeholder:"N" help:"Data-parallel ranks (default 8)."`
	Nodes        int           `name:"nodes" default:"1" placeholder:"N" help:"Nodes that the ranks are spread over; the ranks of a node share its disk (default 1)."`
	GPUBlocks    config.Blocks `name:"gpu-blocks" default:"1000" placeholder:"N|SIZE" help:"GPU cache of each rank in blocks, or as a size such as 2TB (default 1000)."`
	DiskBlocks   config.Blocks `name:"disk-blocks" default:"30000" placeholder:"N|SIZE" help:"Disk tier of each node in blocks, or as a size such as 2TB; 0 for none (default 30000)."`
	ObjectBlocks config.Blocks `name:"object-blocks" default:"0" placeholder:"N|SIZE" help:"Object tier of all nodes in blocks, or as a size such as 2TB; 0 for none (default 0)."`

	PrefillTokensPerS float64       `name:"prefill-tokens-per-s" default:"10000" placeholder:"N" help:"Prompt tokens that a rank computes in a second (default 10000)."`
	Model             string        `name:"model" placeholder:"NAME|PATH" help:"Take the size of a token's KV from a well-known model, such as llama-3.1-70b, or from a model's config.json."`
	KVType            string        `name:"kv-type" default:"auto" placeholder:"TYPE" help:"With --model: type that the engine keeps KV in (--kv-cache-dtype): auto, fp8, bfloat16, float16 or float32 (default auto)."`
	BytesPerToken     *config.Bytes `name:"bytes-per-token" placeholder:"SIZE" help:"Size of a token's KV. Default: that of --model, else 128KiB."`
	DiskBytesPerS     config.Bytes  `name:"disk-bytes-per-s" default:"3GB" placeholder:"SIZE" help:"Read bandwidth of a node's disk, in a second (default 3GB)."`
	ObjectBytesPerS   config.Bytes  `name:"object-bytes-per-s" default:"1GB" placeholder:"SIZE" help:"Bandwidth from the object store to a node, in a second (default 1GB)."`
	SaveBytesPerS     config.Bytes  `name:"save-bytes-per-s" default:"0" placeholder:"SIZE" help:"What a node's disk can write in a second; saves beyond it are dropped. 0 keeps every save (default 0)."`
	DiskDelay         time.Duration `name:"disk-delay" default:"0s" placeholder:"D" help:"Time before the first byte of a load from disk (default 0s)."`
	ObjectDelay       time.Duration `name:"object-delay" default:"30ms" placeholder:"D" help:"Time before the first byte of a load from the object store (default 30ms)."`
	DecodeTokenTime   time.Duration `name:"decode-token-time" default:"25ms" placeholder:"D" help:"Time for each output token (default 25ms)."`
	MaxRunning        int           `name:"max-running" default:"256" placeholder:"N" help:"Requests that a rank serves at once (default 256)."`
	OverlapLoads      bool          `name:"overlap-loads" help:"Prompts load while their rank computes others."`
	AlwaysLoad        bool          `name:"always-load" help:"Load every hit, also where computing is faster."`

	Speed          float64       `name:"speed" default:"1" placeholder:"X" help:"How much faster than recorded requests arrive (default 1)."`
	Spread         time.Duration `name:"spread" default:"0s" placeholder:"D" help:"Delay each arrival by a random time below this, for traces with a coarse clock (default 0s)."`
	Sequential     bool          `name:"sequential" help:"Each request arrives when the one before has finished: hit rates without effects of time."`
	FullBlocksOnly bool          `name:"full-blocks-only" help:"Leave partial blocks at the ends of prompts out, as engines do."`
	Seed           uint32        `name:"seed" default:"0" placeholder:"N" help:"Chooses random times and how ties are broken (default 0)."`

	JSON bool   `name:"json" help:"Print the result as JSON."`
	Plot string `name:"plot" placeholder:"FILE" help:"Write capacity curve and times to first token as an SVG drawing."`
}

// Help is shown below the command's summary.
func (*replayCmd) Help() string {
	return `Runs a recorded trace through a model of ranks with GPU caches, the disks of their nodes
and an object tier, once with each routing policy. Prints hit rates by tier, how evenly the work is spread, the estimated
time to first token, and the hit rate of every size of disk: what size to buy. Nothing is loaded, computed or written;
equal flags give equal results. docs/replay.md describes the model, the trace format and how to size a disk.`
}

// Run replays the trace and prints the report.
func (c *replayCmd) Run(ctx context.Context, std *terminal.Streams) error {
	if err := c.size(std); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	trace, err := c.read(ctx, std)
	if err != nil {
		return err
	}
	bar := terminal.NewProgress(std.Err, "replaying")
	report, err := replay.Run(ctx, trace, c.options(), c.Policies, func(done, total int) { bar.Set(int64(done), int64(total)) })
	bar.Finish()
	if err != nil {
		return err
	}
	if c.Plot != "" {
		if err := c.plot(report); err != nil {
			return err
		}
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, report)
	}
	return report.Print(std.Out)
}

// defaultBytesPerToken is that of Llama 3 with 8 billion parameters.
const defaultBytesPerToken = 128 << 10

// size finds out how large a token's KV is, if no flag says it.
func (c *replayCmd) size(std *terminal.Streams) error {
	switch {
	case c.Model == "" && c.KVType != "auto":
		return errors.New("--kv-type needs --model")
	case c.Model == "":
		if c.BytesPerToken == nil {
			c.BytesPerToken = new(config.Bytes)
			*c.BytesPerToken = defaultBytesPerToken
		}
		return nil
	case c.BytesPerToken != nil:
		return errors.New("--model and --bytes-per-token say the same thing: give one of them")
	}
	m, err := kvsize.Find(c.Model)
	if err == nil {
		m, err = m.WithType(c.KVType)
	}
	if err != nil {
		return fmt.Errorf("--model: %w", err)
	}
	c.BytesPerToken = new(config.Bytes)
	*c.BytesPerToken = config.Bytes(m.BytesPerToken())
	fmt.Fprintf(std.Err, "%s: %d bytes of KV a token (%s)\n", m.Name, m.BytesPerToken(), m.String())
	return nil
}

// check reports the first flag with a wrong value that the options would take for not set.
func (c *replayCmd) check() error {
	if err := terminal.WantPositive(map[string]float64{
		"block-tokens": float64(c.BlockTokens), "timestamp-unit": float64(c.TimestampUnit),
		"ranks": float64(c.Ranks), "nodes": float64(c.Nodes), "gpu-blocks": float64(c.blocks(c.GPUBlocks)),
		"prefill-tokens-per-s": c.PrefillTokensPerS, "bytes-per-token": float64(*c.BytesPerToken),
		"disk-bytes-per-s": float64(c.DiskBytesPerS), "object-bytes-per-s": float64(c.ObjectBytesPerS),
		"max-running": float64(c.MaxRunning), "speed": c.Speed,
	}); err != nil {
		return err
	}
	if strings.HasSuffix(c.Plot, ".png") || strings.HasSuffix(c.Plot, ".pdf") {
		return fmt.Errorf("--plot %s: the drawing is SVG; name a file that ends in .svg", c.Plot)
	}
	return nil
}

func (c *replayCmd) read(ctx context.Context, std *terminal.Streams) (*replay.Trace, error) {
	if strings.HasPrefix(c.Trace, agents.Prefix) {
		return agents.FromText(c.Trace, c.options(), c.BlockTokens)
	}
	in, name := &traceReader{ctx: ctx, in: std.In, bar: terminal.NewProgress(std.Err, "reading")}, "standard input"
	if c.Trace != "-" {
		f, err := os.Open(c.Trace)
		if err != nil {
			return nil, fmt.Errorf("open trace: %w", err)
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil {
			in.total = info.Size()
		}
		in.in, name = f, c.Trace
	}
	defer in.bar.Finish()
	text, err := unpacked(in)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	trace, err := replay.Read(text, replay.ReadOptions{BlockTokens: c.BlockTokens, TimestampUnit: c.TimestampUnit})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return trace, nil
}

// unpacked is a text, unpacked if it was packed by gzip.
func unpacked(in io.Reader) (io.Reader, error) {
	begin := bufio.NewReader(in)
	if magic, _ := begin.Peek(2); !bytes.Equal(magic, []byte{0x1f, 0x8b}) { // errors come again when it is read
		return begin, nil
	}
	return gzip.NewReader(begin)
}

// traceReader shows how much of a trace is read, and ends with its context.
type traceReader struct {
	ctx         context.Context
	in          io.Reader
	bar         *terminal.Progress
	done, total int64
}

// Read implements [io.Reader].
func (r *traceReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.in.Read(p)
	r.done += int64(n)
	r.bar.Set(r.done, r.total)
	return n, err
}

// blocks is a capacity in blocks of the trace.
func (c *replayCmd) blocks(of config.Blocks) int {
	return of.Of(float64(c.BlockTokens) * float64(*c.BytesPerToken))
}

func (c *replayCmd) options() replay.Options {
	return replay.Options{
		Ranks: c.Ranks, Nodes: c.Nodes, GPUBlocks: c.blocks(c.GPUBlocks), DiskBlocks: orNone(c.blocks(c.DiskBlocks)), ObjectBlocks: orNone(c.blocks(c.ObjectBlocks)),
		PrefillTokensPerS: c.PrefillTokensPerS, BytesPerToken: float64(*c.BytesPerToken),
		DiskBytesPerS: float64(c.DiskBytesPerS), ObjectBytesPerS: float64(c.ObjectBytesPerS), SaveBytesPerS: float64(c.SaveBytesPerS),
		DiskDelay: orNone(c.DiskDelay.Seconds()), ObjectDelay: orNone(c.ObjectDelay.Seconds()), DecodeTokenTime: orNone(c.DecodeTokenTime.Seconds()),
		MaxRunning: c.MaxRunning, OverlapLoads: c.OverlapLoads, AlwaysLoad: c.AlwaysLoad,
		Speed: c.Speed, Spread: c.Spread.Seconds(), Sequential: c.Sequential, FullBlocksOnly: c.FullBlocksOnly, Seed: c.Seed,
	}
}

// orNone returns v, and for 0 the -1 that stands for none in options.
func orNone[T int | float64](v T) T {
	if v == 0 {
		return -1
	}
	return v
}

func (c *replayCmd) plot(r *replay.Report) error {
	f, err := os.Create(c.Plot)
	if err != nil {
		return fmt.Errorf("create plot: %w", err)
	}
	if err := errors.Join(r.Plot(f), f.Close()); err != nil {
		return fmt.Errorf("write plot: %w", err)
	}
	return nil
}
