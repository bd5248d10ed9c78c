package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/kvconn/kvconn/store/storebench"
)

// benchCmd is `kvconnd bench`.
type benchCmd struct {
	Index benchIndexCmd `cmd:"" help:"Measure the index: look-up, memory, time to open."`
}

// benchIndexCmd is `kvconnd bench index`.
type benchIndexCmd struct {
	Records int    `name:"records" default:"5000000" placeholder:"N" help:"Records in the index."`
	Dir     string `name:"dir" placeholder:"DIR" help:"Where the temporary store is made; default: the system's directory for temporary files."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

// Run builds an index in a temporary directory and measures it.
func (c *benchIndexCmd) Run(ctx context.Context, std *streams) error {
	if c.Dir == "" {
		c.Dir = os.TempDir()
	}
	bar := newProgress(std.err, int64(c.Records), "building the index")
	r, err := storebench.Index(ctx, storebench.IndexOptions{Dir: c.Dir, Records: c.Records, Progress: func(n int) { bar.set(int64(n)) }})
	bar.finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, r)
	}
	_, err = fmt.Fprintf(std.out, `records                   %d
lookup of %d keys       %.3f ms (p99 %.3f ms)
memory a record           %.1f B
journal a record          %.1f B on disk
open after clean stop     %.3f s
open after kill -9        %.3f s
`, r.Records, r.Chain, 1e3*r.LookupSeconds, 1e3*r.LookupP99Seconds, r.BytesPerRecord, r.JournalBytesPerRecord, r.OpenCleanSeconds, r.OpenKilledSeconds)
	return err
}

// printJSON writes v for programs.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// progress is a bar on a terminal, and nothing elsewhere.
type progress struct{ bar *progressbar.ProgressBar }

func newProgress(out io.Writer, total int64, what string) *progress {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &progress{}
	}
	return &progress{progressbar.NewOptions64(total,
		progressbar.OptionSetWriter(out), progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(progressInterval))}
}

// progressInterval is how often a bar is drawn at most.
const progressInterval = 100 * time.Millisecond

func (p *progress) set(n int64) {
	if p.bar != nil {
		_ = p.bar.Set64(n)
	}
}

func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
