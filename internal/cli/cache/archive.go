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

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/store/archive"
)

// exportCmd is `kvconnd cache export`.
type exportCmd struct {
	where
	Model     string `name:"model" xor:"what" required:"" placeholder:"NAME" help:"Export all namespaces of this model."`
	Namespace string `name:"namespace" xor:"what" required:"" placeholder:"DIGEST" help:"Export this namespace: its digest, or the beginning of it that no other has."`
	Output    string `name:"output" short:"o" required:"" placeholder:"FILE" help:"The file to write. It must not be there yet."`
	Unsealed  bool   `name:"unsealed" help:"Export a store with a key file: payloads are in plain text in the file."`
	JSON      bool   `name:"json" help:"Print what was exported as JSON."`
}

// Help is shown below the command's summary.
func (*exportCmd) Help() string {
	return `Each record is verified as it leaves the store, and once more as it is written to the file. What is saved or evicted meanwhile
may be in it or not. Give the file to 'kvconnd cache import' on another node.`
}

// Run writes the file.
func (c *exportCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	q := url.Values{"model": {c.Model}}
	if c.Namespace != "" {
		digest, err := daemon.digest(ctx, c.Namespace)
		if err != nil {
			return err
		}
		q = url.Values{"namespace": {digest}}
	}
	if c.Unsealed {
		q.Set("unsealed", "true")
	}
	resp, err := daemon.open(ctx, http.MethodGet, "/v1/archive?"+q.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	done, err := write(ctx, c.Output, resp.Body)
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
	if failed := resp.Trailer.Get(admin.FailedTrailer); failed != "" && failed != "0" {
		return fmt.Errorf("%s records could not be read, or were damaged, and are not in the file: see the daemon's log", printable(failed))
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
	File string `arg:"" name:"file" help:"A file that 'kvconnd cache export' has written; - for the standard input."`
	JSON bool   `name:"json" help:"Print what was imported as JSON."`
}

// Help is shown below the command's summary.
func (*importCmd) Help() string {
	return `Each record is verified. One that is damaged in the file is counted and left out, and the others go in; the exit status
is 0 only if all did. Import files only from those whom you would let write to the store: what is in them is
given to engines. When the command ends, what it has imported is durable.`
}

// Run reads the file.
func (c *importCmd) Run(ctx context.Context, command *kong.Context, resolver *settings.Resolver, std *terminal.Streams) error {
	daemon, err := c.find(ctx, command, resolver)
	if err != nil {
		return err
	}
	in := std.In
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	resp, err := daemon.open(ctx, http.MethodPost, "/v1/archive", io.NopCloser(in))
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var done archive.Imported
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(&done); err != nil {
		return fmt.Errorf("import %s: %w", c.File, err)
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
