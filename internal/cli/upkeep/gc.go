package upkeep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/store/object/maintain"
	"github.com/kvconn/kvconn/store/object/steward"
)

// isBucket reports whether an argument names a bucket and not a directory.
func isBucket(arg string) bool { return strings.HasPrefix(arg, "s3://") }

// maintainOptions are those of a bucket whose nodes use a key file, or none.
func maintainOptions(url string, b *config.Bucket, keyFile string, std *terminal.Streams) (o maintain.Options, err error) {
	o.Bucket = settings.BucketOptions(url, b)
	o.Logger = logging.New(std.Err, "error", "text")
	o.Ring, err = settings.LoadKeys(keyFile)
	return o, err
}

// GCCmd is `kvconnd gc`.
type GCCmd struct {
	Config         settings.File `name:"config" env:"KVCONN_CONFIG" placeholder:"FILE" help:"YAML file of a daemon's settings. The command takes what it has flags for."`
	Object         string        `name:"object" env:"KVCONN_OBJECT" placeholder:"URL" help:"Bucket to collect, s3://BUCKET or s3://BUCKET/PREFIX."`
	ObjectMaxBytes config.Bytes  `name:"object-max-bytes" env:"KVCONN_OBJECT_MAX_BYTES" default:"1TB" placeholder:"SIZE" help:"Cap of the bucket: from 90% of it on the least recently used goes, until 85% are left; 0 for none (default 1TB)."`
	ObjectMaxAge   time.Duration `name:"object-max-age" env:"KVCONN_OBJECT_MAX_AGE" default:"720h" help:"What nobody used for that long goes; 0 for never."`
	KeyFile        string        `name:"key-file" env:"KVCONN_KEY_FILE" placeholder:"FILE" help:"Key file of the daemons that use the bucket."`
	JSON           bool          `name:"json" help:"Print the result as JSON."`
	config.Bucket
}

// Help is shown below the command's summary.
func (*GCCmd) Help() string {
	return `Does once what a daemon that can write to the bucket does as it runs: removes from the offer
what is beyond the cap or the age, deletes what was removed 15 minutes before, and objects that
are in no list for a day. While a daemon holds the bucket's lease it changes nothing and says
which one it is.`
}

// Run collects once.
func (c *GCCmd) Run(ctx context.Context, std *terminal.Streams) error {
	if c.Object == "" {
		return errors.New("object is not set: name the bucket with --object s3://BUCKET/PREFIX")
	}
	if c.ObjectMaxAge != 0 && c.ObjectMaxAge < time.Hour {
		return fmt.Errorf("--object-max-age is %v: at least an hour, or 0", c.ObjectMaxAge)
	}
	o, err := maintainOptions(c.Object, &c.Bucket, c.KeyFile, std)
	if err != nil {
		return err
	}
	bar := terminal.NewProgress(std.Err, "collecting objects")
	r, err := maintain.GC(ctx, o, maintain.GCOptions{MaxBytes: int64(c.ObjectMaxBytes), MaxAge: c.ObjectMaxAge, Progress: bar.Set})
	bar.Finish()
	if held := (*steward.HeldError)(nil); errors.As(err, &held) {
		return fmt.Errorf("%w; it keeps the bucket within its own settings, and nothing was changed here; if it has ended, try again in a minute", err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return terminal.PrintJSON(std.Out, r)
	}
	return printGC(std.Out, &r)
}

func printGC(out io.Writer, r *maintain.GCReport) error {
	if r.Foreign > 0 {
		fmt.Fprintf(out, "%d names are none of the object tier's, and were left\n", r.Foreign)
	}
	if r.LeavingObjects > 0 {
		fmt.Fprintf(out, "%d objects of %s are removed: they are deleted 15 minutes after that, by a daemon or the next gc\n",
			r.LeavingObjects, config.Bytes(r.LeavingBytes))
	}
	_, err := fmt.Fprintf(out, "%s: %d objects of %s; %d removed by the cap, %d by their age; %d deleted, and %d that were in no list\n",
		r.Bucket, r.Objects, config.Bytes(r.Bytes), r.RemovedCap, r.RemovedAge, r.Deleted, r.Orphans)
	return err
}

// checkBucket checks a bucket.
func (c *FsckCmd) checkBucket(ctx context.Context, std *terminal.Streams) error {
	o, err := maintainOptions(c.Dir, &c.Bucket, c.KeyFile, std)
	if err != nil {
		return err
	}
	bar := terminal.NewProgress(std.Err, "checking objects")
	r, err := maintain.Fsck(ctx, o, maintain.FsckOptions{Payload: c.Payload, NoRepair: c.NoRepair, Progress: bar.Set})
	bar.Finish()
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, r)
	} else {
		err = printBucketFsck(std.Out, &r)
	}
	switch {
	case err != nil:
		return err
	case r.Unread > 0:
		return fmt.Errorf("%d things could be neither read nor repaired", r.Unread)
	case c.NoRepair && !r.Clean():
		return errors.New("the bucket is not clean, and nothing was repaired")
	}
	return nil
}

func printBucketFsck(out io.Writer, r *maintain.FsckReport) error {
	total := int64(0)
	counts := make([]string, 0, len(r.Problems))
	for what, n := range r.Problems {
		total += n
		counts = append(counts, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(counts)
	for _, p := range r.Details {
		fmt.Fprintf(out, "%s: %s", p.What, p.Name)
		if p.Detail != "" {
			fmt.Fprintf(out, " (%s)", p.Detail)
		}
		fmt.Fprintln(out)
	}
	if more := total - int64(len(r.Details)); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
	for _, what := range r.Repaired {
		fmt.Fprintf(out, "repaired: %s\n", what)
	}
	for _, what := range r.Failed {
		fmt.Fprintf(out, "failed: %s\n", what)
	}
	if r.Steward != "" {
		fmt.Fprintf(out, "%s, the bucket's steward, carries the repairs out within seconds\n", r.Steward)
	}
	if len(counts) == 0 {
		counts = []string{"nothing wrong"}
	}
	_, err := fmt.Fprintf(out, "%s: %d objects of %s: %d in the log, %d in lists that wait, %d too young to be in one, %d removed; %d records verified; %s\n",
		r.Bucket, r.Objects, config.Bytes(r.Bytes), r.Present, r.Waiting, r.Young, r.Leaving, r.Records, strings.Join(counts, ", "))
	return err
}
