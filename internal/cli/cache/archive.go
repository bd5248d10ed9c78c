package cache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/cache/stopped"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/store/archive"
	"github.com/kvconn/kvconn/store/disk"
)

// exportCmd is `kvconnd cache export`.
type exportCmd struct {
	where
	Model     string `name:"model" xor:"what" required:"" placeholder:"NAME" help:"Export all namespaces of this model."`
	Namespace string `name:"namespace" xor:"what" required:"" placeholder:"DIGEST" help:"Export this namespace: its digest, or the beginning of it that no other has."`
	Output    string `name:"output" short:"o" required:"" placeholder:"FILE" help:"The file to write. It must not be there yet."`
	keys
	Unsealed bool `name:"unsealed" help:"Export a store with a key file: payloads are in plain text in the file."`
	JSON     bool `name:"json" help:"Print what was exported as JSON."`
}

// Help is shown below the command's summary.
func (*exportCmd) Help() string {
	return `Each record is verified as it leaves the store, and once more as it is written to the file. What is saved or evicted meanwhile
may be in it or not. Give the file to 'kvconnd cache import' on another node.

If no daemon runs on the store of --dir, the command opens the store itself, and nothing is evicted. A daemon cannot be
started on it meanwhile.`
}

// Run writes the file.
func (c *exportCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, s, err := c.reach(ctx, command, resolver, func() (*disk.Store, error) { return c.openToRead(ctx, std) })
	if err != nil {
		return err
	}
	if s == nil {
		done, failed, err := c.fromDaemon(ctx, daemon)
		return c.report(&done, failed, "see the daemon's log", err, std)
	}
	done, failed, err := c.fromStore(ctx, s, std)
	unread := s.Stats().AwaitedSegments
	switch closed := s.Close(); {
	case closed != nil && err == nil:
		err = fmt.Errorf("the file is complete, but: %w", closed)
	case closed != nil:
		err = errors.Join(err, closed)
	}
	err = c.report(&done, strconv.FormatInt(failed, 10), "'kvconnd fsck --payload' says which, and drops them", err, std)
	if err == nil && unread > 0 {
		err = fmt.Errorf("%d segments cannot be read, and their records are not in the file: look for I/O errors in the kernel's log, "+
			"and give the command again when the disk answers", unread)
	}
	return err
}

// fromDaemon writes the file from what the daemon sends.
func (c *exportCmd) fromDaemon(ctx context.Context, daemon *client) (done archive.Imported, failed string, err error) {
	q := url.Values{"model": {c.Model}}
	if c.Namespace != "" {
		digest, err := daemon.digest(ctx, c.Namespace)
		if err != nil {
			return done, "", err
		}
		q = url.Values{"namespace": {digest}}
	}
	if c.Unsealed {
		q.Set("unsealed", "true")
	}
	resp, err := daemon.open(ctx, http.MethodGet, "/v1/archive?"+q.Encode(), http.NoBody)
	if err != nil {
		return done, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	done, err = write(ctx, c.Output, resp.Body)
	return done, resp.Trailer.Get(admin.FailedTrailer), err
}

// report prints what was exported. failed is how many records were not.
func (c *exportCmd) report(done *archive.Imported, failed, look string, err error, std *terminal.Streams) error {
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, done)
	} else {
		_, err = fmt.Fprintf(std.Out, "exported: %d records of %s in %d namespaces\n", done.Records, config.Bytes(done.Bytes), done.Namespaces)
	}
	if err != nil {
		return err
	}
	if failed != "" && failed != "0" {
		return fmt.Errorf("%s records could not be read, or were damaged, and are not in the file: %s", printable(failed), look)
	}
	return nil
}

// write writes an archive to a new file, and verifies it as it passes. A file that is not complete is removed.
func write(ctx context.Context, path string, from io.Reader) (done archive.Imported, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return done, err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	tee := io.TeeReader(from, f)
	if done, err = archive.Import(ctx, nil, tee); err != nil {
		return done, fmt.Errorf("write %s: %w", path, err)
	}
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return done, fmt.Errorf("write %s: %w", path, err)
	}
	if !done.Complete || done.Damaged+done.Unknown+done.SkippedBytes > 0 {
		return done, errors.New("the daemon broke off: see its log, and give the command again")
	}
	return done, f.Sync()
}

// importCmd is `kvconnd cache import`.
type importCmd struct {
	where
	keys
	caps
	File string `arg:"" name:"file" help:"A file that 'kvconnd cache export' has written; - for the standard input."`
	JSON bool   `name:"json" help:"Print what was imported as JSON."`
}

// Help is shown below the command's summary.
func (*importCmd) Help() string {
	return `Each record is verified. One that is damaged in the file is counted and left out, and the others go in; the exit status
is 0 only if all did. Import files only from those whom you would let write to the store: what is in them is
given to engines. When the command ends, what it has imported is durable.

If no daemon runs on the store of --dir, the command opens the store itself, or makes one in an empty directory. Give it the daemon's
--config, or the same --max-bytes, --min-free, --key-file and --tenants-file. A daemon cannot be started on the store meanwhile. A signal ends
the import early, and leaves a whole store.`
}

// Run reads the file.
func (c *importCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	in, size, err := c.open(std) // before a store is made
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	daemon, s, err := c.reach(ctx, command, resolver, func() (*disk.Store, error) { return c.openToWrite(ctx, std) })
	if err != nil {
		return err
	}
	if s == nil {
		done, err := c.intoDaemon(ctx, daemon, in)
		return c.report(&done, err, std)
	}
	done, err := c.intoStore(ctx, s, in, size, std)
	return c.report(&done, errors.Join(err, s.Close()), std)
}

// open opens the file. size is 0 if it is not known.
func (c *importCmd) open(std *terminal.Streams) (in io.ReadCloser, size int64, err error) {
	if c.File == "-" {
		return io.NopCloser(std.In), 0, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, 0, err
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return f, size, nil
}

// intoStore puts the file into a store that this process has open.
func (c *importCmd) intoStore(ctx context.Context, s *disk.Store, in io.Reader, size int64, std *terminal.Streams) (done archive.Imported, err error) {
	bar := newBar(std)
	defer bar.end()
	if done, err = stopped.Import(ctx, s, in, func(read int64) { bar.set("importing bytes", read, size) }); err != nil {
		err = fmt.Errorf("import %s: %w (%d records were imported before that)", c.File, err, done.Records)
	}
	return done, err
}

// intoDaemon sends the file to the daemon.
func (c *importCmd) intoDaemon(ctx context.Context, daemon *client, in io.Reader) (done archive.Imported, err error) {
	resp, err := daemon.open(ctx, http.MethodPost, "/v1/archive", io.NopCloser(in))
	if err != nil {
		return done, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(&done); err != nil {
		return done, fmt.Errorf("import %s: %w", c.File, err)
	}
	return done, nil
}

// report prints what was imported, and says what of the file was not.
func (c *importCmd) report(done *archive.Imported, err error, std *terminal.Streams) error {
	if err != nil {
		return err
	}
	if c.JSON {
		err = terminal.PrintJSON(std.Out, done)
	} else {
		_, err = fmt.Fprintf(std.Out, "imported: %d records of %s in %d namespaces\n", done.Records, config.Bytes(done.Bytes), done.Namespaces)
	}
	switch {
	case err != nil:
		return err
	case done.Records == 0 && !done.Complete:
		return fmt.Errorf("%s is no archive", c.File)
	case done.Damaged+done.SkippedBytes > 0:
		return fmt.Errorf("the file is damaged: %d records and %d other bytes were left out", done.Damaged, done.SkippedBytes)
	case done.Unknown > 0:
		return fmt.Errorf("%d records are of namespaces whose description is not in the file, or damaged", done.Unknown)
	case done.Refused > 0:
		return fmt.Errorf("the store has refused %d records, the first since: %s", done.Refused, printable(done.Refusal))
	case !done.Complete:
		return errors.New("the file has no end: it was cut off, and what is there was imported")
	}
	return nil
}
