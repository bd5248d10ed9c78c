package main

import (
	"context"
	"fmt"
	"os"

	"github.com/kvconn/kvconn/internal/bench/connbench"
	"github.com/kvconn/kvconn/internal/bench/leaderbench"
	"github.com/kvconn/kvconn/internal/bench/storebench"
)

// benchLeaderCmd is `kvconnd bench leader`.
type benchLeaderCmd struct {
	Records int    `name:"records" default:"5000000" placeholder:"N" help:"Records in the index (default 5000000)."`
	Tokens  int    `name:"tokens" default:"131072" placeholder:"N" help:"Tokens of the prompt (default 131072)."`
	Calls   int    `name:"calls" default:"20000" placeholder:"N" help:"Round trips timed (default 20000)."`
	Dir     string `name:"dir" placeholder:"DIR" help:"Where the temporary store is made; default: the system's directory for temporary files."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

// leaderResult is what bench leader prints.
type leaderResult struct {
	leaderbench.Result
	RoundTrip connbench.Result `json:"round_trip"`
	RTTP50S   float64          `json:"rtt_p50_s"`
}

// Validate reports what cannot be measured.
func (c *benchLeaderCmd) Validate() error {
	return wantPositive(map[string]int64{"records": int64(c.Records), "tokens": int64(c.Tokens), "calls": int64(c.Calls)})
}

// Run measures calls between two processes, then matches.
func (c *benchLeaderCmd) Run(ctx context.Context, std *streams) error {
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
	bar := newProgress(std.err, "building the index")
	r.Result, err = leaderbench.Match(ctx, leaderbench.Options{
		Dir: orTempDir(c.Dir), Records: c.Records, Tokens: c.Tokens, Open: storebench.OpenSparse,
		Progress: func(n int) { bar.set(int64(n), int64(c.Records)) },
	})
	bar.finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, r)
	}
	_, err = fmt.Fprintf(std.out, `records                    %d
match of %d tokens     %.3f ms (least %.3f, p99 %.3f), hashing included, %g allocations
round trip of a small call %.1f µs (least %.1f, p99 %.1f), two processes; bare bytes %.1f µs
`, r.Records, r.Tokens, 1e3*r.MatchSeconds, 1e3*r.MatchMinSeconds, 1e3*r.MatchP99Seconds, r.AllocsPerMatch,
		1e6*r.RTTP50S, 1e6*r.RoundTrip.RTTLowestS, 1e6*r.RoundTrip.RTTP99S, 1e6*r.RoundTrip.RawP50S)
	return err
}

// benchCallCmd is the process that calls. It serves bench leader only, and is hidden.
type benchCallCmd struct {
	Args []string `arg:"" help:"Socket, calls, tokens."`
}

// Run times the calls and writes the result to standard output.
func (c *benchCallCmd) Run(ctx context.Context, std *streams) error {
	return connbench.Call(ctx, c.Args, std.out)
}
