// Package bench is `kvconnd bench`: it measures kvconn on this machine, beside the machine's own limits.
package bench

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/kvconn/kvconn/internal/bench/connbench"
	"github.com/kvconn/kvconn/internal/bench/leaderbench"
	"github.com/kvconn/kvconn/internal/bench/routerbench"
	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/internal/bench/workerbench"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
)

// Cmd is `kvconnd bench`.
type Cmd struct {
	Store  storeCmd  `cmd:"" help:"Measure verified reads and writes beside what the disk does raw."`
	Index  indexCmd  `cmd:"" help:"Measure the index: look-up, growth, choice of victims, memory, time to open."`
	Leader leaderCmd `cmd:"" help:"Measure the scheduler's path: matching a long prompt, and a call's round trip."`
	Router routerCmd `cmd:"" help:"Measure the router: walks of its index, decisions, ingest of engine events, memory."`
	Load   loadCmd   `cmd:"" help:"Measure loads into engine memory, from disk and from the host tier, beside raw reads and memcpy."`
	Object objectCmd `cmd:"" help:"Measure the object tier's parts: uploads, fetching, look-ups, joining, requests."`
	GPU    gpuCmd    `cmd:"" name:"gpu" help:"Measure copies to and from a GPU in engines' layouts, and what they cost a busy GPU."`
	Engine engineCmd `cmd:"" help:"Measure any OpenAI endpoint: first tokens of new prompts, and of the same prompts asked again; compare two."`
	Call   callCmd   `cmd:"" hidden:"" help:"The calling process of bench leader."`
	Server serverCmd `cmd:"" hidden:"" help:"The process of the server of bench object."`
}

type storeCmd struct {
	Dir         string       `name:"dir" placeholder:"DIR" help:"Where the temporary files are made: on the disk to measure. Default: the system's directory for temporary files."`
	RecordBytes config.Bytes `name:"record-bytes" default:"2MiB" placeholder:"SIZE" help:"Size of a record (default 2MiB)."`
	TotalBytes  config.Bytes `name:"total-bytes" default:"1GiB" placeholder:"SIZE" help:"Bytes that each round reads and writes (default 1GiB)."`
	Rounds      int          `name:"rounds" default:"5" placeholder:"N" help:"Rounds of raw and store measurements in turn; medians count (default 5)."`
	JSON        bool         `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *storeCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{"record-bytes": float64(c.RecordBytes), "total-bytes": float64(c.TotalBytes), "rounds": float64(c.Rounds)})
}

// Run measures raw device and store in turn.
func (c *storeCmd) Run(ctx context.Context, std *terminal.Streams) error {
	r, err := storebench.Store(ctx, storebench.StoreOptions{
		Dir: cmp.Or(c.Dir, os.TempDir()), PayloadBytes: int(c.RecordBytes), TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds,
		Progress: func(step string) { fmt.Fprintln(std.Err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	const gib = 1 << 30
	_, err = fmt.Fprintf(std.Out, `records of %s, %s a round, direct I/O: %v; medians
                raw          store        ratio   CPU s/GiB   p50        p99
read     %8.2f GiB/s %8.2f GiB/s  %6.3f      %6.3f   %7.2f ms %7.2f ms   raw shape %s
write    %8.2f GiB/s %8.2f GiB/s  %6.3f      %6.3f   %7.2f ms %7.2f ms   raw shape %s
at the cap, every write evicting: write %.3f of raw, read p99 %.2f times that of an idle store
`, c.RecordBytes, c.TotalBytes, r.DirectIO,
		r.RawReadBytesPerS/gib, r.ReadBytesPerS/gib, r.ReadRatio, r.ReadCPUSPerGiB, 1e3*r.ReadP50Seconds, 1e3*r.ReadP99Seconds, r.RawReadShape,
		r.RawWriteBytesPerS/gib, r.WriteBytesPerS/gib, r.WriteRatio, r.WriteCPUSPerGiB, 1e3*r.WriteP50Seconds, 1e3*r.WriteP99Seconds, r.RawWriteShape,
		r.ChurnWriteRatio, r.ChurnReadP99Ratio)
	return err
}

type indexCmd struct {
	Records   int    `name:"records" default:"5000000" placeholder:"N" help:"Records in the index (default 5000000)."`
	TableOnly bool   `name:"table-only" help:"Measure the table in memory alone: needs 60 bytes of memory a record and no disk."`
	Dir       string `name:"dir" placeholder:"DIR" help:"Where the temporary store is made; default: the system's directory for temporary files."`
	JSON      bool   `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *indexCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{"records": float64(c.Records)})
}

// Run builds a table, and an index in a temporary directory, and measures them.
func (c *indexCmd) Run(ctx context.Context, std *terminal.Streams) error {
	bar := terminal.NewProgress(std.Err, "")
	r, err := storebench.Index(ctx, storebench.IndexOptions{
		Dir: cmp.Or(c.Dir, os.TempDir()), Records: c.Records, TableOnly: c.TableOnly,
		Progress: func(step string, done, total int) {
			if step != bar.What() {
				bar.Finish()
				bar = terminal.NewProgress(std.Err, step)
			}
			bar.Set(int64(done), int64(total))
		},
	})
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	if err := printTable(std.Out, &r.Table); err != nil || c.TableOnly {
		return err
	}
	_, err = fmt.Fprintf(std.Out, `look-up of %d keys      %.3f ms (p99 %.3f ms)
memory a record           %.1f B
journal a record          %.1f B on disk
open after clean stop     %.3f s
open after kill -9        %.3f s
`, r.Chain, 1e3*r.LookupSeconds, 1e3*r.LookupP99Seconds, r.BytesPerRecord, r.JournalBytesPerRecord, r.OpenCleanSeconds, r.OpenKilledSeconds)
	return err
}

func printTable(out io.Writer, t *storebench.TableResult) error {
	fmt.Fprintf(out, `records                   %d
table: memory a record    %.1f B (at most %.1f B while it grew; resident memory %.1f B)
table: records added      %.0f a second beside look-ups
table: a batch of growth  %.3f ms (p99 %.3f ms, longest %.3f ms) of processor time, two holds of the lock
`, t.Records, t.BytesPerRecord, t.WorstBytesPerRecord, t.ResidentBytesPerRecord, t.InsertsPerS, 1e3*t.BatchSeconds, 1e3*t.BatchP99Seconds, 1e3*t.BatchMaxSeconds)
	for _, l := range []struct {
		when string
		t    storebench.LookupTimes
	}{{"while it grows", t.Growing}, {"while it fills", t.Filling}, {"of a still table", t.Still}} {
		fmt.Fprintf(out, "look-up %-17s %.3f ms (p99 %.3f ms, longest %.3f ms, longest wait for anything but a processor %.3f ms)\n",
			l.when, 1e3*l.t.MedianSeconds, 1e3*l.t.P99Seconds, 1e3*l.t.MaxSeconds, 1e3*l.t.StallMaxSeconds)
	}
	_, err := fmt.Fprintf(out, `choice of victims         %.4f ms (p99 %.4f ms, longest %.4f ms) of processor time, %.0f victims each
as long a computation     %.4f ms (p99 %.4f ms, longest %.4f ms)
`, 1e3*t.ChoiceSeconds, 1e3*t.ChoiceP99Seconds, 1e3*t.ChoiceMaxSeconds, t.VictimsPerChoice,
		1e3*t.ControlSeconds, 1e3*t.ControlP99Seconds, 1e3*t.ControlMaxSeconds)
	return err
}

type leaderCmd struct {
	Records int    `name:"records" default:"5000000" placeholder:"N" help:"Records in the index (default 5000000)."`
	Tokens  int    `name:"tokens" default:"131072" placeholder:"N" help:"Tokens of the prompt (default 131072)."`
	Calls   int    `name:"calls" default:"20000" placeholder:"N" help:"Round trips timed (default 20000)."`
	Dir     string `name:"dir" placeholder:"DIR" help:"Where the temporary store is made; default: the system's directory for temporary files."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

type leaderResult struct {
	leaderbench.Result
	RoundTrip connbench.Result `json:"round_trip"`
	RTTP50S   float64          `json:"rtt_p50_s"`
}

// Validate reports what cannot be measured.
func (c *leaderCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{"records": float64(c.Records), "tokens": float64(c.Tokens), "calls": float64(c.Calls)})
}

// Run measures calls between two processes, then matches.
func (c *leaderCmd) Run(ctx context.Context, std *terminal.Streams) error {
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var r leaderResult
	r.RoundTrip, err = connbench.RoundTrip(ctx, connbench.Options{Command: []string{executable, "bench", "call"}, Calls: c.Calls})
	if err != nil {
		return err
	}
	r.RTTP50S = r.RoundTrip.RTTP50S
	bar := terminal.NewProgress(std.Err, "building the index")
	r.Result, err = leaderbench.Match(ctx, leaderbench.Options{
		Dir: cmp.Or(c.Dir, os.TempDir()), Records: c.Records, Tokens: c.Tokens, Open: storebench.OpenSparse,
		Progress: func(n int) { bar.Set(int64(n), int64(c.Records)) },
	})
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	_, err = fmt.Fprintf(std.Out, `records                    %d
match of %d tokens     %.3f ms (least %.3f, p99 %.3f), hashing included, %g allocations
round trip of a small call %.1f µs (least %.1f, p99 %.1f), two processes; bare bytes %.1f µs
`, r.Records, r.Tokens, 1e3*r.MatchSeconds, 1e3*r.MatchMinSeconds, 1e3*r.MatchP99Seconds, r.AllocsPerMatch,
		1e6*r.RTTP50S, 1e6*r.RoundTrip.RTTLowestS, 1e6*r.RoundTrip.RTTP99S, 1e6*r.RoundTrip.RawP50S)
	return err
}

// callCmd is the process that calls. It serves bench leader only, and is hidden.
type callCmd struct {
	Args []string `arg:"" help:"Socket, calls, tokens."`
}

// Run times the calls and writes the result to standard output.
func (c *callCmd) Run(ctx context.Context, std *terminal.Streams) error {
	return connbench.Call(ctx, c.Args, std.Out)
}

type loadCmd struct {
	Dir        string       `name:"dir" placeholder:"DIR" help:"Where the temporary files are made: on the disk to measure. Default: the system's directory for temporary files."`
	LayerBytes config.Bytes `name:"layer-bytes" default:"64KiB" placeholder:"SIZE" help:"Bytes of a block in each layer (default 64KiB)."`
	Layers     int          `name:"layers" default:"32" placeholder:"N" help:"Layers (default 32)."`
	TotalBytes config.Bytes `name:"total-bytes" default:"1GiB" placeholder:"SIZE" help:"Bytes that each round loads from disk (default 1GiB)."`
	Rounds     int          `name:"rounds" default:"5" placeholder:"N" help:"Rounds of limits and loads in turn; medians count (default 5)."`
	JSON       bool         `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *loadCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{
		"layer-bytes": float64(c.LayerBytes), "layers": float64(c.Layers), "total-bytes": float64(c.TotalBytes), "rounds": float64(c.Rounds),
	})
}

// Run measures loads into engine memory beside raw reads and plain copies.
func (c *loadCmd) Run(ctx context.Context, std *terminal.Streams) error {
	r, err := workerbench.Load(ctx, workerbench.LoadOptions{
		Dir: cmp.Or(c.Dir, os.TempDir()), LayerBytes: int(c.LayerBytes), Layers: c.Layers, TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds,
		Progress: func(step string) { fmt.Fprintln(std.Err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	const gib = 1 << 30
	line := func(name string, f *workerbench.Figures) {
		fmt.Fprintf(std.Out, "%-22s %6.2f GiB/s of %6.2f raw: %.3f   %6.2f GiB/s of %6.2f memcpy: %.3f   %.2f CPU s/GiB\n", name,
			f.LoadBytesPerS/gib, f.RawReadBytesPerS/gib, f.DiskRatio, f.HostBytesPerS/gib, f.PieceMemcpyBytesPerS/gib, f.HostRatio, f.LoadCPUSPerGiB)
	}
	fmt.Fprintf(std.Out, "blocks of %s, %s a round; medians; verified loads into shared memory\n%-22s %-32s %s\n",
		config.Bytes(r.BlockBytes), c.TotalBytes, "", "from disk", "from the host tier")
	line(fmt.Sprintf("%d pieces of %s", c.Layers, c.LayerBytes), &r.Figures)
	line("one piece", &r.Contiguous)
	return nil
}

type routerCmd struct {
	Blocks     int  `name:"blocks" default:"8000" placeholder:"N" help:"Blocks of 16 tokens in the prompt (default 8000)."`
	Ranks      int  `name:"ranks" default:"64" placeholder:"N" help:"Ranks (default 64)."`
	Background int  `name:"background" default:"1000000" placeholder:"N" help:"Other blocks in the index (default 1000000)."`
	JSON       bool `name:"json" help:"Print the result as JSON."`
}

// routerResult has the result of the whole decision beside that of the index.
type routerResult struct {
	routerbench.IndexResult
	routerbench.IngestResult
	DecideFromTokensSeconds float64                  `json:"decide_from_tokens_s"`
	AllocsPerDecision       float64                  `json:"allocs_per_decision"`
	Decide                  routerbench.DecideResult `json:"decide"`
}

// Validate reports what cannot be measured.
func (c *routerCmd) Validate() error {
	return terminal.WantPositive(map[string]float64{"blocks": float64(c.Blocks), "ranks": float64(c.Ranks), "background": float64(c.Background)})
}

// Run measures the index, then ingest.
func (c *routerCmd) Run(ctx context.Context, std *terminal.Streams) error {
	progress := func(what string) { fmt.Fprintln(std.Err, what) }
	var r routerResult
	var err error
	o := routerbench.Options{Blocks: c.Blocks, Ranks: c.Ranks, Background: c.Background, Progress: progress}
	r.IndexResult, err = routerbench.Index(ctx, o)
	if err != nil {
		return err
	}
	if r.Decide, err = routerbench.Decide(ctx, o); err != nil {
		return err
	}
	r.DecideFromTokensSeconds, r.AllocsPerDecision = r.Decide.DecideFromTokensSeconds, r.Decide.AllocsPerDecision
	progress("ingest of engine events")
	if r.IngestResult, err = routerbench.Ingest(ctx, routerbench.IngestOptions{}); err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	_, err = fmt.Fprintf(std.Out, `walk of %d blocks, every rank's prefix
  held by all %d ranks       %.2f µs
  held by one                %.2f µs
  left by many other prompts %.2f µs
decision from tokens         %.3f ms, %g allocations
walk p99 beside ingest       %.2f times that of an idle index
memory a block, one rank     %.1f B
memory a block, %d ranks     %.1f B
ingest of event frames       %.2f M blocks a CPU second
`, c.Blocks, c.Ranks, 1e6*r.WalkAllHoldSeconds, 1e6*r.WalkOneHoldsSeconds, 1e6*r.WalkForkedSeconds,
		1e3*r.DecideFromTokensSeconds, r.AllocsPerDecision, r.WalkIngestP99Ratio, r.BytesPerBlock1Rank, c.Ranks, r.BytesPerBlock64Ranks,
		r.BlocksPerSecond/1e6)
	return err
}
