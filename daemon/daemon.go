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
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvconn/kvconn/connector/server"
	"github.com/kvconn/kvconn/store"
)

// httpStopTimeout bounds how long running HTTP requests hold up the stop.
const httpStopTimeout = 2 * time.Second

// infoFile is the file in the store directory that says how to reach the daemon.
const infoFile = "daemon.json"

// Run serves until ctx ends, then stops in order: engines are disconnected, accepted
// saves are written, and the store is closed with a snapshot.
func Run(ctx context.Context, o Options) (err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return err
	}
	epoch, err := newEpoch()
	if err != nil {
		return err
	}
	s, err := openStore(ctx, &o)
	if err != nil {
		return err
	}
	defer func() {
		o.Logger.Info("closing the store")
		if closeErr := s.Close(); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("close the store: %w", closeErr))
		}
	}()
	d := &daemon{opts: &o, store: s, backend: newBackend(&o, s), epoch: epoch, started: time.Now()}
	d.server = server.New(server.Options{
		Epoch: epoch, Version: Version, LoadTimeout: o.LoadTimeout, UID: os.Getuid(), Logger: o.Logger,
	}, d.backend)
	return d.serve(ctx)
}

// daemon is the state of one Run.
type daemon struct {
	opts    *Options
	store   *store.Store
	backend *backend
	server  *server.Server
	epoch   uint64
	info    Info
	started time.Time
}

func openStore(ctx context.Context, o *Options) (*store.Store, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the store directory %s: %w", o.Dir, err)
	}
	s, err := store.Open(ctx, store.Options{
		Dir: o.Dir, MaxBytes: o.MaxBytes, Logger: o.Logger,
		LeaseMax: max(time.Minute, 2*o.LoadTimeout),
		// The ranks' staging memory is what bounds saves, and refuses first: a shard that
		// the store refused while the block's other shards are written is wasted space.
		WriteInFlightBytes: math.MaxInt64 / 2,
		ReadTimeout:        o.LoadTimeout,
		Calibrate:          true,
		ScrubBytesPerS:     o.ScrubBytesPerS,
	})
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", o.Dir, err)
	}
	st := s.Stats()
	o.Logger.Info("store opened", "dir", o.Dir, "records", st.Records, "physical_bytes", st.PhysicalBytes,
		"max_bytes", st.MaxBytes, "recovered", st.Recovered, "took", st.OpenDuration)
	for _, w := range st.Warnings {
		o.Logger.Warn("store", "warning", w)
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
	info := Info{PID: os.Getpid(), Epoch: fmt.Sprintf("%016x", d.epoch), Socket: d.opts.Socket}
	d.info = info
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	// Whatever way this ends, nobody serves a store that is being closed.
	defer func() { _ = g.Wait() }()
	defer cancel()
	if d.opts.HTTP != "" {
		l, err := net.Listen("tcp", d.opts.HTTP)
		if err != nil {
			return fmt.Errorf("listen for HTTP on %s: %w", d.opts.HTTP, err)
		}
		info.HTTP = l.Addr().String()
		g.Go(func() error { return serveHTTP(ctx, l, d.handler()) })
	}
	infoPath := filepath.Join(d.opts.Dir, infoFile)
	if err := writeInfo(infoPath, info); err != nil {
		return err
	}
	defer func() { _ = os.Remove(infoPath) }()
	l, err := server.Listen(ctx, d.opts.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(d.opts.Socket) }()
	g.Go(func() error { return d.server.Serve(ctx, l) })
	d.opts.Logger.Info("ready", "version", Version, "socket", info.Socket, "http", info.HTTP, "epoch", info.Epoch)
	if d.opts.Ready != nil {
		d.opts.Ready(info)
	}
	err = g.Wait()
	d.opts.Logger.Info("stopping")
	return err
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

func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		shutdown, cancel := context.WithTimeout(context.Background(), httpStopTimeout)
		defer cancel()
		if err := s.Shutdown(shutdown); err != nil {
			_ = s.Close()
		}
	})
	err := s.Serve(l)
	if !stop() {
		<-stopped // Serve returns as soon as the stop begins
	}
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}
