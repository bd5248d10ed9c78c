package main

import (
	"context"
	"fmt"

	"github.com/kvconn/kvconn/internal/bench/routerbench"
)

// benchRouterCmd is `kvconnd bench router`.
type benchRouterCmd struct {
	Blocks     int  `name:"blocks" default:"8000" placeholder:"N" help:"Blocks of 16 tokens in the prompt (default 8000)."`
	Ranks      int  `name:"ranks" default:"64" placeholder:"N" help:"Ranks (default 64)."`
	Background int  `name:"background" default:"1000000" placeholder:"N" help:"Other blocks in the index (default 1000000)."`
	JSON       bool `name:"json" help:"Print the result as JSON."`
}

// routerResult is what bench router prints. Of the decision it has the whole, not the
// index's part.
type routerResult struct {
	routerbench.IndexResult
	routerbench.IngestResult
	DecideFromTokensSeconds float64                  `json:"decide_from_tokens_s"`
	AllocsPerDecision       float64                  `json:"allocs_per_decision"`
	Decide                  routerbench.DecideResult `json:"decide"`
}

// Validate reports what cannot be measured.
func (c *benchRouterCmd) Validate() error {
	return wantPositive(map[string]int64{"blocks": int64(c.Blocks), "ranks": int64(c.Ranks), "background": int64(c.Background)})
}

// Run measures the index, then ingest.
func (c *benchRouterCmd) Run(ctx context.Context, std *streams) error {
	progress := func(what string) { fmt.Fprintln(std.err, what) }
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
		return printJSON(std.out, r)
	}
	_, err = fmt.Fprintf(std.out, `walk of %d blocks, every rank's prefix
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
