package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kvconn/kvconn/store/disk"
)

type fsckCmd struct {
	Dir     string `arg:"" placeholder:"DIR" help:"Store directory."`
	Payload bool   `name:"payload" help:"Read and verify every payload, too, not only the structures."`
	KeyFile string `name:"key-file" env:"KVCONN_KEY_FILE" placeholder:"FILE" help:"Key file of the daemon that uses the store."`
	JSON    bool   `name:"json" help:"Print the result as JSON."`
}

// Help is shown below the command's summary.
func (*fsckCmd) Help() string {
	return `Checks index, journal and segment headers against each other, repairs what can be
repaired, and says exactly what it dropped. The daemon must not be running. A store needs
no fsck to be safe: every load is verified, and what fails is dropped then.`
}

// Run checks the store.
func (c *fsckCmd) Run(ctx context.Context, std *streams) error {
	// Opening a store makes one: a mistyped directory must not become one.
	if _, err := os.Stat(filepath.Join(c.Dir, "FORMAT")); err != nil {
		if entries, dirErr := os.ReadDir(filepath.Join(c.Dir, "segments")); dirErr != nil || len(entries) == 0 {
			return fmt.Errorf("%s holds no store: %w", c.Dir, err)
		}
	}
	ring, err := loadKeys(c.KeyFile)
	if err != nil {
		return err
	}
	bar := newProgress(std.err, "checking records")
	report, err := disk.Fsck(ctx, c.Dir, disk.FsckOptions{
		Payload: c.Payload, Progress: bar.set, Store: disk.Options{Ring: ring, Logger: slog.New(slog.DiscardHandler)},
	})
	bar.finish()
	if err != nil {
		return err
	}
	if c.JSON {
		err = printJSON(std.out, report)
	} else {
		err = printFsck(std.out, &report)
	}
	if err == nil && len(report.Failed) > 0 {
		err = fmt.Errorf("%d things could be neither read nor repaired", len(report.Failed))
	}
	return err
}

func printFsck(out io.Writer, r *disk.FsckReport) error {
	for _, what := range r.Repaired {
		fmt.Fprintf(out, "repaired: %s\n", what)
	}
	for i := range r.Dropped {
		d := &r.Dropped[i]
		fmt.Fprintf(out, "dropped: record %s (shard %d), slot %d of segment %d: %s\n", d.Key, d.Shard, d.Slot, d.Segment, d.Reason)
	}
	for _, what := range r.Failed {
		fmt.Fprintf(out, "failed: %s\n", what)
	}
	if r.Keyless > 0 {
		fmt.Fprintf(out, "%d records are sealed with a key that is not here: only the checksum of what is stored can be verified, and a daemon with these keys does not use them; give --key-file\n", r.Keyless)
	}
	if r.Unsealed > 0 {
		fmt.Fprintf(out, "%d records are not sealed: a daemon with this key file does not use them\n", r.Unsealed)
	}
	_, err := fmt.Fprintf(out, "%s: %d records in %d segments and %d namespaces, index from %s; %d repairs, %d records dropped\n",
		r.Dir, r.Records, r.Segments, r.Namespaces, r.Recovered, len(r.Repaired), len(r.Dropped))
	return err
}
