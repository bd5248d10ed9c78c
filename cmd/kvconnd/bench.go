package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/kvconn/kvconn/internal/bench/storebench"
	"github.com/kvconn/kvconn/internal/config"
)

// benchCmd is `kvconnd bench`.
type benchCmd struct {
	Store  benchStoreCmd  `cmd:"" help:"Measure verified reads and writes beside what the disk does raw."`
	Index  benchIndexCmd  `cmd:"" help:"Measure the index: look-up, growth, choice of victims, memory, time to open."`
	Leader benchLeaderCmd `cmd:"" help:"Measure the scheduler's path: matching a long prompt, and a call's round trip."`
	Router benchRouterCmd `cmd:"" help:"Measure the router: walks of its index, decisions, ingest of engine events, memory."`
	Load   benchLoadCmd   `cmd:"" help:"Measure loads into engine memory, from disk and from the host tier, beside raw reads and memcpy."`
	Call   benchCallCmd   `cmd:"" hidden:"" help:"The calling process of bench leader."`
}

// benchStoreCmd is `kvconnd bench store`.
type benchStoreCmd struct {
	Dir         string       `name:"dir" placeholder:"DIR" help:"Where the temporary files are made: on the disk to measure. Default: the system's directory for temporary files."`
	RecordBytes config.Bytes `name:"record-bytes" default:"2MiB" placeholder:"SIZE" help:"Size of a record (default 2MiB)."`
	TotalBytes  config.Bytes `name:"total-bytes" default:"1GiB" placeholder:"SIZE" help:"Bytes that each round reads and writes (default 1GiB)."`
	Rounds      int          `name:"rounds" default:"5" placeholder:"N" help:"Rounds of raw and store measurements in turn; medians count (default 5)."`
	JSON        bool         `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *benchStoreCmd) Validate() error {
	return wantPositive(map[string]int64{"record-bytes": int64(c.RecordBytes), "total-bytes": int64(c.TotalBytes), "rounds": int64(c.Rounds)})
}

// Run measures raw device and store in turn.
func (c *benchStoreCmd) Run(ctx context.Context, std *streams) error {
	r, err := storebench.Store(ctx, storebench.StoreOptions{
		Dir: orTempDir(c.Dir), PayloadBytes: int(c.RecordBytes), TotalBytes: int64(c.TotalBytes), Rounds: c.Rounds,
		Progress: func(step string) { fmt.Fprintln(std.err, step) },
	})
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, r)
	}
	const gib = 1 << 30
	_, err = fmt.Fprintf(std.out, `records of %s, %s a round, direct I/O: %v; medians
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

// benchIndexCmd is `kvconnd bench index`.
type benchIndexCmd struct {
	Records   int    `name:"records" default:"5000000" placeholder:"N" help:"Records in the index (default 5000000)."`
	TableOnly bool   `name:"table-only" help:"Measure the table in memory alone: needs 60 bytes of memory a record and no disk."`
	Dir       string `name:"dir" placeholder:"DIR" help:"Where the temporary store is made; default: the system's directory for temporary files."`
	JSON      bool   `name:"json" help:"Print the result as JSON."`
}

// Validate reports what cannot be measured.
func (c *benchIndexCmd) Validate() error {
	return wantPositive(map[string]int64{"records": int64(c.Records)})
}

// Run builds a table, and an index in a temporary directory, and measures them.
func (c *benchIndexCmd) Run(ctx context.Context, std *streams) error {
	bar := newProgress(std.err, "")
	r, err := storebench.Index(ctx, storebench.IndexOptions{
		Dir: orTempDir(c.Dir), Records: c.Records, TableOnly: c.TableOnly,
		Progress: func(step string, done, total int) {
			if step != bar.what {
				bar.finish()
				bar = newProgress(std.err, step)
			}
			bar.set(int64(done), int64(total))
		},
	})
	bar.finish()
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(std.out, r)
	}
	if err := printTable(std.out, &r.Table); err != nil || c.TableOnly {
		return err
	}
	_, err = fmt.Fprintf(std.out, `look-up of %d keys      %.3f ms (p99 %.3f ms)
memory a record           %.1f B
journal a record          %.1f B on disk
open after clean stop     %.3f s
open after kill -9        %.3f s
`, r.Chain, 1e3*r.LookupSeconds, 1e3*r.LookupP99Seconds, r.BytesPerRecord, r.JournalBytesPerRecord, r.OpenCleanSeconds, r.OpenKilledSeconds)
	return err
}

func printTable(out io.Writer, t *storebench.TableResult) error {
	_, err := fmt.Fprintf(out, `records                   %d
table: memory a record    %.1f B (at most %.1f B while it grew; resident memory %.1f B)
table: records added      %.0f a second beside look-ups
table: a batch of growth  %.3f ms (p99 %.3f ms, longest %.3f ms) of processor time, two holds of the lock
`, t.Records, t.BytesPerRecord, t.WorstBytesPerRecord, t.ResidentBytesPerRecord, t.InsertsPerS, 1e3*t.BatchSeconds, 1e3*t.BatchP99Seconds, 1e3*t.BatchMaxSeconds)
	if err != nil {
		return err
	}
	for _, l := range []struct {
		when string
		t    storebench.LookupTimes
	}{{"while it grows", t.Growing}, {"while it fills", t.Filling}, {"of a still table", t.Still}} {
		if _, err := fmt.Fprintf(out, "look-up %-17s %.3f ms (p99 %.3f ms, longest %.3f ms, longest wait for anything but a processor %.3f ms)\n",
			l.when, 1e3*l.t.MedianSeconds, 1e3*l.t.P99Seconds, 1e3*l.t.MaxSeconds, 1e3*l.t.StallMaxSeconds); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, `choice of victims         %.4f ms (p99 %.4f ms, longest %.4f ms) of processor time, %.0f victims each
as long a computation     %.4f ms (p99 %.4f ms, longest %.4f ms)
`, 1e3*t.ChoiceSeconds, 1e3*t.ChoiceP99Seconds, 1e3*t.ChoiceMaxSeconds, t.VictimsPerChoice,
		1e3*t.ControlSeconds, 1e3*t.ControlP99Seconds, 1e3*t.ControlMaxSeconds)
	return err
}

// wantPositive reports the first of the flags, by name, whose value is not positive.
func wantPositive(flags map[string]int64) error {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		if flags[name] < 1 {
			return fmt.Errorf("--%s is %d: must be positive", name, flags[name])
		}
	}
	return nil
}

func orTempDir(dir string) string {
	if dir == "" {
		return os.TempDir()
	}
	return dir
}

// printJSON writes v for programs.
func printJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
