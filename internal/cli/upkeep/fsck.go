// Package upkeep is the commands that keep stores and buckets in order while no daemon does: fsck, gc, key.
package upkeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/disk/shadow"
)

// MendedError is no failure, but what a script wants to know: damage was found and mended.
type MendedError struct{ Err error }

// Error implements error.
func (e MendedError) Error() string { return e.Err.Error() }

// Unwrap gives what was mended.
func (e MendedError) Unwrap() error { return e.Err }

// FsckCmd is `kvconnd fsck`.
type FsckCmd struct {
	Dir      string `arg:"" help:"Store directory, or s3://BUCKET/PREFIX."`
	Payload  bool   `name:"payload" help:"Read and verify every payload, too, not only the structures."`
	KeyFile  string `name:"key-file" env:"KVCONN_KEY_FILE" placeholder:"FILE" help:"Key file of the daemons that use the store."`
	NoRepair bool   `name:"no-repair" help:"Change nothing and say what would be repaired; the status is 1 if anything is wrong."`
	JSON     bool   `name:"json" help:"Print the result as JSON."`
	config.Bucket
}

// Help is shown below the command's summary.
func (*FsckCmd) Help() string {
	return `Checks index, journal and segment headers against each other, repairs what can be
repaired, and says exactly what it dropped. The daemon must not be running. A store needs
no fsck to be safe: every load is verified, and what fails is dropped then. The exit status is 0
if nothing was wrong, 3 if what was wrong is mended, and 1 if it is not or could not be checked.
With --no-repair not a byte of the store changes: the check works on a copy of the journal and the
small files below $TMPDIR.

Of a bucket it compares the objects with the lists, while daemons may use it. It deletes nothing
that daemons read: what is missing or damaged is taken out of the offer, what is whole and in no
list for an hour is offered again, and a list of the lists that was lost is made again. The
daemon that is the bucket's steward carries that out, or this command if there is none. The exit
status is then 0, whatever was found, and 1 if something could not be read; with --no-repair it is
1 if anything is wrong.`
}

// Run checks the store.
func (c *FsckCmd) Run(ctx context.Context, std *terminal.Streams) error {
	if isBucket(c.Dir) {
		return c.checkBucket(ctx, std)
	}
	// Opening a store makes one: a mistyped directory must not become one.
	if _, err := os.Stat(filepath.Join(c.Dir, "FORMAT")); errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("look into %s: %w: only the user of the daemon can check its store", c.Dir, err)
	} else if err != nil {
		if entries, dirErr := os.ReadDir(filepath.Join(c.Dir, "segments")); dirErr != nil || len(entries) == 0 {
			return fmt.Errorf("%s holds no store: %w", c.Dir, err)
		}
	}
	ring, err := settings.LoadKeys(c.KeyFile)
	if err != nil {
		return err
	}
	bar := terminal.NewProgress(std.Err, "checking records")
	o := disk.FsckOptions{Payload: c.Payload, Progress: bar.Set, Store: disk.Options{Ring: ring, Logger: slog.New(slog.DiscardHandler)}}
	var report disk.FsckReport
	if c.NoRepair {
		report, err = shadow.Fsck(ctx, c.Dir, os.TempDir(), o)
	} else {
		report, err = disk.Fsck(ctx, c.Dir, o)
	}
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, report)
	} else {
		err = printFsck(std.Out, &report, c.NoRepair)
	}
	if err == nil && c.NoRepair && !report.Clean() {
		return fmt.Errorf("the store is damaged, and nothing was changed: %d repairs and %d dropped records would mend it, %d things would stay wrong",
			len(report.Repaired), len(report.Dropped), len(report.Failed))
	}
	if err == nil && len(report.Failed) > 0 {
		return fmt.Errorf("%d things could be neither read nor repaired", len(report.Failed))
	}
	if err == nil && !report.Clean() {
		return MendedError{Err: fmt.Errorf("the store was damaged and is whole again: %d repairs, %d records dropped", len(report.Repaired), len(report.Dropped))}
	}
	return err
}

// printFsck prints what was done or, if dry is set, what would be.
func printFsck(out io.Writer, r *disk.FsckReport, dry bool) error {
	repaired, dropped := "repaired", "dropped"
	if dry {
		repaired, dropped = "would be repaired", "would be dropped"
	}
	for _, what := range r.Repaired {
		fmt.Fprintf(out, "%s: %s\n", repaired, what)
	}
	for i := range r.Dropped {
		d := &r.Dropped[i]
		fmt.Fprintf(out, "%s: record %s (shard %d), slot %d of segment %d: %s\n", dropped, d.Key, d.Shard, d.Slot, d.Segment, d.Reason)
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
