package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/gpu"
	"github.com/kvconn/kvconn/internal/daemon/admin"
	"github.com/kvconn/kvconn/internal/daemon/contents"
	"github.com/kvconn/kvconn/internal/daemon/descriptors"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/hostmemory"
	"github.com/kvconn/kvconn/internal/daemon/httplimit"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/internal/daemon/web"
	"github.com/kvconn/kvconn/internal/history"
	"github.com/kvconn/kvconn/internal/observe"
	"github.com/kvconn/kvconn/internal/spans"
	"github.com/kvconn/kvconn/internal/tracelog"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/disk"
	"github.com/kvconn/kvconn/store/host"
	"github.com/kvconn/kvconn/store/object"
	"github.com/kvconn/kvconn/store/object/upload"
	"github.com/kvconn/kvconn/store/residency/publish"
)

// run takes the addresses, opens the store, serves, and closes it.
func run(ctx context.Context, o *Options) error {
	epoch := 1 + rand.Uint64N(math.MaxUint64) // not 0
	now := time.Now()
	d := &daemon{
		opts: o, epoch: epoch, started: now, health: health.New(o.Logger), times: observe.NewTimes(),
		info: Info{PID: os.Getpid(), Epoch: fmt.Sprintf("%016x", epoch), Socket: absolute(o.Socket)},
	}
	d.opening = opening.New(o.Logger, now, func() { _ = d.writeInfo() }) // reported once the store is open
	d.history = newHistory(d)
	// First what can fail at once: an address in use must be found before a store is opened
	// or made.
	defer d.closeListeners()
	if err := d.listen(ctx); err != nil {
		return err
	}
	if err := d.openRecord(); err != nil {
		return err
	}
	defer d.closeRecord()
	if err := d.openSpans(); err != nil {
		return err
	}
	defer d.spans.Close() // last: what the stop ends has spans too
	arena, err := host.New(host.Options{Bytes: o.HostBytes, FreeBytes: hostmemory.FreeBytes, Logger: o.Logger})
	if err != nil {
		return fmt.Errorf("make the host tier of %d bytes: %w", o.HostBytes, err)
	}
	d.arena = arena
	// It outlives the store, which writes from it until it is closed.
	defer func() {
		if closeErr := arena.Close(); closeErr != nil {
			o.Logger.Info("host tier memory is still in use; the end of the process gives it back", "err", closeErr)
		}
	}()
	defer o.pin(arena)()
	// The stop waits for registrations under way, and a device's driver may take longer to start than a stop may.
	if q, ok := o.Driver.(gpu.Quitter); ok {
		defer context.AfterFunc(ctx, q.Quit)()
	}
	return d.run(ctx)
}

// pin prepares the host tier's memory for copies, and returns the function that undoes it.
func (o *Options) pin(arena *host.Arena) (unpin func()) {
	unpinHost, err := o.Driver.PinHost(arena.Writable(), arena.Memory())
	if err != nil {
		o.Logger.Warn("host tier memory could not be prepared for copies: they are slower", "err", err,
			"remedy", "raise the limit on locked memory (LimitMEMLOCK of the service), or lower host_bytes")
		return func() {}
	}
	return func() {
		if err := unpinHost(); err != nil {
			o.Logger.Debug("host tier memory stays locked until the process ends", "err", err)
		}
	}
}

// daemon is the state of one Run. The fields from store to publisher are set before opened
// is, and read by others only after that.
type daemon struct {
	opts    *Options
	arena   *host.Arena
	epoch   uint64
	started time.Time
	health  *health.Monitor
	times   *observe.Times
	opening *opening.Tracker
	history *history.Recorder
	// contents counts what the store holds once it is open.
	contents contents.Counter
	// socket is nil once the server has it; web and profiles are nil if they are not wanted.
	socket        *server.Listener
	web, profiles *httplimit.Server

	infoMu sync.Mutex
	info   Info
	// infoWritten says that the file exists and is this daemon's.
	infoWritten bool

	// opened is set once the store is open, ready while engines can connect.
	opened, ready atomic.Bool
	store         *disk.Store
	// object and uploads are nil without a bucket.
	object  *object.Tier
	uploads *upload.Uploader
	chain   *store.Chain
	backend *backend
	server  *server.Server
	// record is nil if no trace is recorded.
	record *tracelog.Log
	// spans is nil if no traces are sent.
	spans *spans.Tracer
	// publisher is nil if no events are published.
	publisher *publish.Publisher
	// residency serves the streams of what the tiers hold.
	residency http.Handler
	// admin answers administrators.
	admin *admin.Service
	// explain says why prompts are found or are not.
	explain http.Handler
	// warm loads records into host memory on request.
	warm http.Handler
}

// run serves HTTP, opens the store, serves engines until ctx ends, and closes it.
func (d *daemon) run(ctx context.Context) (err error) {
	defer func() {
		if d.chain != nil {
			err = errors.Join(err, d.closeStore())
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range []*httplimit.Server{d.web, d.profiles} {
		if s != nil {
			g.Go(func() error { return s.Serve(ctx) })
		}
	}
	g.Go(func() error { d.history.Run(ctx); return nil })
	err = d.open(ctx)
	if err == nil {
		err = d.serve(ctx, g)
	}
	// However this ends, nobody serves a store that is being closed.
	cancel()
	if failed := g.Wait(); failed != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = failed
	}
	d.ready.Store(false)
	d.removeInfo() // before the store is released: another daemon's file must stay
	return err
}

// serve serves engines until ctx ends.
func (d *daemon) serve(ctx context.Context, g *errgroup.Group) error {
	if d.publisher != nil {
		g.Go(func() error { d.publisher.Run(ctx); return nil })
	}
	if err := d.writeInfo(); err != nil {
		return err
	}
	socket := d.socket
	d.socket = nil
	if err := socket.Publish(ctx); err != nil {
		return errors.Join(err, socket.Close())
	}
	g.Go(func() error { return d.server.Serve(ctx, socket) })
	g.Go(func() error { return d.tend(ctx) })
	g.Go(func() error { d.contents.Run(ctx, d.store.Contents); return nil })
	g.Go(func() error { d.opts.Tenants.Run(ctx, d.opts.Reload, d.store.SetQuotas, d.opts.Logger); return nil })
	d.announce()
	return g.Wait()
}

// announce tells the log, the service manager and the caller that engines can connect.
func (d *daemon) announce() {
	d.ready.Store(true)
	d.opts.Logger.Info("ready", "version", version.Server(), "socket", d.info.Socket, "http", d.info.HTTP, "pprof", d.info.Pprof, "events", d.info.Events, "epoch", d.info.Epoch)
	d.opts.tell(sdnotify.Ready)
	if d.opts.Ready != nil {
		d.opts.Ready(d.info)
	}
}

// listen takes the addresses that engines and people will connect to, if they are wanted.
func (d *daemon) listen(ctx context.Context) (err error) {
	if d.socket, err = server.Reserve(ctx, d.opts.Socket, d.opts.Access); errors.Is(err, fs.ErrPermission) && !errors.Is(err, server.ErrGroup) {
		return fmt.Errorf("%w; set socket to a path in a folder that this user may write, such as %s", err, ownSocket())
	} else if err != nil {
		return err
	}
	if d.opts.HTTP != "" {
		l, err := net.Listen("tcp", d.opts.HTTP)
		if err != nil {
			return fmt.Errorf("listen for HTTP on %s: %w%s", d.opts.HTTP, err, bindHint(err))
		}
		d.info.HTTP = l.Addr().String()
		d.web = httplimit.NewServer(l, descriptors.HTTPConnections(descriptors.Limit()), d.handler(), d.opts.Logger)
	}
	if d.opts.Pprof != "" {
		l, err := web.ListenProfiles(d.opts.Pprof)
		if err != nil {
			return err
		}
		d.info.Pprof = l.Addr().String()
		d.profiles = httplimit.NewServer(l, web.ProfileConnections, web.Profiles(), d.opts.Logger)
	}
	return nil
}

// ownSocket is a path for a user who may not write where sockets belong.
func ownSocket() string {
	home, err := os.UserHomeDir()
	if err != nil {
		return "DIR/kvconnd.sock"
	}
	return filepath.Join(home, ".kvconn", "kvconnd.sock")
}

// bindHint is what to do about an address that cannot be had.
func bindHint(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "; ports below 1024 need a privilege: set http to another"
	case errors.Is(err, syscall.EADDRINUSE):
		return "; another daemon or program has it: set http to another, or to off"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "; this machine has no such address: set http to one that it has"
	}
	return ""
}

// closeListeners closes the addresses that are not served.
func (d *daemon) closeListeners() {
	if d.socket != nil {
		_ = d.socket.Close()
	}
	for _, s := range []*httplimit.Server{d.web, d.profiles} {
		if s != nil {
			_ = s.Close() // if it served, it is closed
		}
	}
}
