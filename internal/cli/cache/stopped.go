package cache

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/alecthomas/kong"

	"github.com/kvconn/kvconn/internal/cli/cache/stopped"
	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/store/archive"
	"github.com/kvconn/kvconn/store/disk"
)

// keys are the settings that a command needs to open a store itself.
type keys struct {
	KeyFile string `name:"key-file" env:"KVCONN_KEY_FILE" placeholder:"FILE" help:"Key file of the store's daemon, if no daemon runs on --dir."`
}

// caps are those that it needs to write to it.
type caps struct {
	MaxBytes    config.Cap   `name:"max-bytes" env:"KVCONN_MAX_BYTES" placeholder:"SIZE|N%" help:"Cap of the store, as its daemon has it, if no daemon runs on --dir. Default: 80% of what is free or the store's own."`
	MinFree     config.Space `name:"min-free" env:"KVCONN_MIN_FREE" placeholder:"SIZE|N%" help:"What the store leaves free of its file system, as its daemon has it, if no daemon runs on --dir."`
	TenantsFile string       `name:"tenants-file" env:"KVCONN_TENANTS_FILE" placeholder:"FILE" help:"Tenants file of the store's daemon, for its quotas, if no daemon runs on --dir."`
}

// reach finds the daemon. If none serves the directory that is meant, it opens the store there, with the lock that daemons take: then the
// store is not nil. A store that somebody else has is not opened, and the error says what to do.
func (w *where) reach(ctx context.Context, command *kong.Context, resolver *settings.Resolver, open func() (*disk.Store, error)) (*client, *disk.Store, error) {
	c, err := w.find(ctx, command, resolver)
	switch {
	case err == nil:
		return c, nil, nil
	case errors.Is(err, daemon.ErrToken):
		return nil, nil, fmt.Errorf("%w, or stop the daemon: the command then opens the store in --dir itself", err)
	case w.Dir == "" || resolver.Source(command, "http").Kind == config.FromFlag:
		return nil, nil, fmt.Errorf("%w; if no daemon runs on the store, name its directory with --dir", err)
	case ctx.Err() != nil:
		return nil, nil, err
	}
	s, openErr := open()
	if errors.Is(openErr, disk.ErrInUse) {
		return nil, nil, fmt.Errorf("%w; and its daemon cannot be asked: %w; give --http and KVCONN_HTTP_TOKEN, or stop the daemon and give the command again", openErr, err)
	}
	return nil, s, openErr
}

// options say how the store is opened. end is to be called when it is open.
func (k *keys) options(dir string, std *terminal.Streams) (o stopped.Options, end func(), err error) {
	bar := newBar(std)
	o = stopped.Options{Dir: dir, Progress: bar.set, Logger: logging.New(std.Err, "warn", "text")}
	o.Ring, err = settings.LoadKeys(k.KeyFile)
	return o, bar.end, err
}

// openToRead opens the store for an export.
func (c *exportCmd) openToRead(ctx context.Context, std *terminal.Streams) (*disk.Store, error) {
	if c.KeyFile != "" && !c.Unsealed {
		return nil, errors.New("the store is sealed, and an archive is not: give --unsealed if payloads may be in the file in plain text")
	}
	o, end, err := c.options(c.Dir, std)
	if err != nil {
		return nil, err
	}
	defer end()
	return stopped.OpenToRead(ctx, o)
}

// errUnwritten ends an export whose file cannot be written.
var errUnwritten = errors.New("the file cannot be written")

// fromStore writes the file from a store that this process has open.
func (c *exportCmd) fromStore(ctx context.Context, s *disk.Store, std *terminal.Streams) (done archive.Imported, failed int64, err error) {
	chosen, err := (&rmCmd{Model: c.Model, Namespace: c.Namespace}).choose(admin.ListOf(s.Contents()).Namespaces)
	if err != nil {
		return done, 0, err
	}
	digests := make([]string, len(chosen))
	for i := range chosen {
		digests[i] = chosen[i].Digest
	}
	bar := newBar(std)
	defer bar.end()
	pr, pw := io.Pipe()
	exported := make(chan error, 1)
	go func() {
		e, err := stopped.Export(ctx, s, digests, pw, func(done, total int64) { bar.set("exporting records", done, total) })
		failed = e.Failed
		_ = pw.CloseWithError(err)
		exported <- err
	}()
	done, err = write(ctx, c.Output, pr)
	_ = pr.CloseWithError(errUnwritten)
	if failure := <-exported; err != nil && failure != nil && !errors.Is(failure, errUnwritten) && !errors.Is(err, failure) {
		err = errors.Join(err, failure)
	}
	return done, failed, err
}

// openToWrite opens the store for an import.
func (c *importCmd) openToWrite(ctx context.Context, std *terminal.Streams) (*disk.Store, error) {
	o, end, err := c.options(c.Dir, std)
	if err != nil {
		return nil, err
	}
	defer end()
	tenants, err := settings.LoadTenants(c.TenantsFile)
	if err != nil {
		return nil, err
	}
	o.MaxBytes, o.MinFree, o.Quotas = c.MaxBytes, c.MinFree, tenants.File().Quotas()
	return stopped.OpenToWrite(ctx, o)
}

// bar shows the progress of one thing after the other.
type bar struct {
	std  *terminal.Streams
	what string
	p    *terminal.Progress
}

func newBar(std *terminal.Streams) *bar { return &bar{std: std} }

func (b *bar) set(what string, done, total int64) {
	if b.p == nil || b.what != what {
		b.end()
		b.what, b.p = what, terminal.NewProgress(b.std.Err, what)
	}
	b.p.Set(done, total)
}

func (b *bar) end() {
	if b.p != nil {
		b.p.Finish()
		b.p = nil
	}
}
