package daemon

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/daemon/sdnotify"
	"github.com/kvconn/kvconn/store"
	"github.com/kvconn/kvconn/store/host"
)

// infoFile is the file in the store directory that says how to reach the daemon.
const infoFile = "daemon.json"

// run opens the store, serves, and closes it.
func run(ctx context.Context, o *Options) (err error) {
	epoch, err := newEpoch()
	if err != nil {
		return err
	}
	arena, err := host.New(host.Options{Bytes: o.HostBytes, Logger: o.Logger})
	if err != nil {
		return fmt.Errorf("make the host tier of %d bytes: %w", o.HostBytes, err)
	}
	// It outlives the store, which writes from it until it is closed.
	defer func() {
		if closeErr := arena.Close(); closeErr != nil {
			o.Logger.Info("host tier memory is still in use; the end of the process gives it back", "err", closeErr)
		}
	}()
	unpin, err := o.Driver.PinHost(arena.Memory())
	if err != nil {
		o.Logger.Warn("host tier memory could not be prepared for copies: they are slower", "err", err,
			"remedy", "raise the limit on locked memory (LimitMEMLOCK of the service), or lower host_bytes")
	} else {
		defer func() {
			if unpinErr := unpin(); unpinErr != nil {
				o.Logger.Debug("host tier memory stays locked until the process ends", "err", unpinErr)
			}
		}()
	}
	s, err := openStore(ctx, o)
	if err != nil {
		return err
	}
	defer func() {
		o.Logger.Info("closing the store")
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closeErr))
		}
	}()
	d := &daemon{
		opts: o, store: s, arena: arena, backend: newBackend(o, s, arena), epoch: epoch, started: time.Now(), health: newHealth(o.Logger),
	}
	d.server = server.New(server.Options{
		Epoch: epoch, Version: Version, LoadTimeout: o.LoadTimeout, UID: os.Getuid(), Logger: o.Logger,
	}, d.backend)
	return d.serve(ctx)
}

// daemon is the state of one Run.
type daemon struct {
	opts    *Options
	store   *store.Store
	arena   *host.Arena
	backend *backend
	server  *server.Server
	epoch   uint64
	info    Info
	started time.Time
	health  *health
	// publisher is nil if no events are published.
	publisher *publisher
	// ready is true while engines can connect.
	ready atomic.Bool
}

func openStore(ctx context.Context, o *Options) (*store.Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store directory %s: %w", o.Dir, err)
	}
	so := store.Options{
		Dir: o.Dir, MaxBytes: o.MaxBytes, Logger: o.Logger,
		LeaseMax: max(time.Minute, 2*o.LoadTimeout),
		// The ranks' staging memory is what bounds saves, and refuses first: a shard that
		// the store refused while the block's other shards are written is wasted space.
		WriteInFlightBytes: math.MaxInt64 / 2,
		ReadTimeout:        o.LoadTimeout,
		Calibrate:          true,
		ScrubBytesPerS:     o.ScrubBytesPerS,
	}
	if o.Store != nil {
		so = o.Store(so)
	}
	s, err := store.Open(ctx, so)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", o.Dir, err)
	}
	st := s.Stats()
	o.Logger.Info("store opened", "dir", o.Dir, "records", st.Records, "physical_bytes", st.PhysicalBytes,
		"max_bytes", st.MaxBytes, "recovered", st.Recovered, "took", st.OpenDuration)
	for _, w := range st.Warnings {
		o.Logger.Warn("the store was opened with damage or limits; loads are verified, answers stay right", "warning", w,
			"remedy", "see docs/operations.md, Warnings of the store")
	}
	return s, nil
}

// newEpoch is a random number that is not 0.
func newEpoch() (uint64, error) {
	var b [8]byte
	for {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw an epoch: %w", err)
		}
		if e := binary.LittleEndian.Uint64(b[:]); e != 0 {
			return e, nil
		}
	}
}

func (d *daemon) serve(ctx context.Context) error {
	d.info = Info{PID: os.Getpid(), Epoch: fmt.Sprintf("%016x", d.epoch), Socket: d.opts.Socket}
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	// Whatever way this ends, nobody serves a store that is being closed.
	defer func() { _ = g.Wait() }()
	defer cancel()
	if err := d.openPublisher(ctx); err != nil {
		return err
	}
	if d.publisher != nil {
		g.Go(func() error { return d.publisher.run(ctx) })
	}
	handlers, err := d.listenHTTP(ctx)
	if err != nil {
		return err
	}
	for _, h := range handlers {
		g.Go(h)
	}
	infoPath := filepath.Join(d.opts.Dir, infoFile)
	if err := writeInfo(infoPath, d.info); err != nil {
		return err
	}
	defer func() { _ = os.Remove(infoPath) }()
	l, err := server.Listen(ctx, d.opts.Socket)
	if err != nil {
		return err
	}
	g.Go(func() error { return d.server.Serve(ctx, l) })
	g.Go(func() error { return d.tend(ctx) })
	d.announce()
	err = g.Wait()
	d.ready.Store(false)
	return err
}

// announce tells everybody who waits for it that engines can connect.
func (d *daemon) announce() {
	d.ready.Store(true)
	d.opts.Logger.Info("ready", "version", Version, "socket", d.info.Socket, "http", d.info.HTTP, "pprof", d.info.Pprof, "events", d.info.Events, "epoch", d.info.Epoch)
	d.opts.tell(sdnotify.Ready)
	if d.opts.Ready != nil {
		d.opts.Ready(d.info)
	}
}

// listenHTTP opens the HTTP interface and that of the profiles, as far as they are wanted,
// and returns what serves them.
func (d *daemon) listenHTTP(ctx context.Context) ([]func() error, error) {
	var serve []func() error
	if d.opts.HTTP != "" {
		l, err := net.Listen("tcp", d.opts.HTTP)
		if err != nil {
			return nil, fmt.Errorf("listen for HTTP on %s: %w", d.opts.HTTP, err)
		}
		d.info.HTTP = l.Addr().String()
		serve = append(serve, func() error { return serveHTTP(ctx, l, d.handler(ctx)) })
	}
	if d.opts.Pprof != "" {
		l, err := listenPprof(d.opts.Pprof)
		if err != nil {
			return nil, err
		}
		d.info.Pprof = l.Addr().String()
		serve = append(serve, func() error { return serveHTTP(ctx, l, pprofHandler()) })
	}
	return serve, nil
}

// writeInfo replaces the file in one step, so that a reader sees all of it or none.
func writeInfo(path string, info Info) error {
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", infoFile, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", infoFile, err)
	}
	return nil
}

// ReadInfo says how to reach the daemon that serves the store in dir.
func ReadInfo(dir string) (Info, error) {
	var info Info
	b, err := os.ReadFile(filepath.Join(dir, infoFile))
	if errors.Is(err, os.ErrNotExist) {
		return info, fmt.Errorf("no daemon serves %s", dir)
	}
	if err == nil {
		err = json.Unmarshal(b, &info)
	}
	if err != nil {
		return info, fmt.Errorf("read %s: %w", infoFile, err)
	}
	return info, nil
}
