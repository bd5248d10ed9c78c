package zmtp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ServerOptions bound a publisher or a replay server.
type ServerOptions struct {
	// MaxConns is how many peers are served at one time; others are refused. Default 256.
	MaxConns int
	// QueueMessages and QueueBytes bound what waits for a slow subscriber; the rest is dropped. Defaults
	// 65,536 and 64 MiB: some seconds of a busy engine.
	QueueMessages int
	QueueBytes    int64
	// Conn bounds each connection. Its MaxMessageBytes is 4 KiB by default: peers send subscriptions
	// and replay requests only.
	Conn ConnOptions
	// Logger receives what happens to peers. Default [slog.Default].
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *ServerOptions) EnsureDefaults() {
	o.MaxConns = cmp.Or(o.MaxConns, 256)
	o.QueueMessages = cmp.Or(o.QueueMessages, 1<<16)
	o.QueueBytes = cmp.Or(o.QueueBytes, 64<<20)
	o.Conn.MaxMessageBytes = cmp.Or(o.Conn.MaxMessageBytes, maxCommandBytes)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Conn.EnsureDefaults()
}

// Validate reports the first option that cannot be used.
func (o *ServerOptions) Validate() error {
	if o.MaxConns < 1 || o.QueueMessages < 1 || o.QueueMessages > 1<<20 || o.QueueBytes < 1 {
		return errors.New("zmtp: server options must be positive, at most 1 Mi queued messages")
	}
	return o.Conn.Validate()
}

// Listen opens an endpoint, tcp://host:port (host * means all addresses, port 0 any port) or ipc://path. A Unix
// socket left behind by a dead process is replaced.
func Listen(ctx context.Context, endpoint string) (net.Listener, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	if network == "unix" {
		if c, err := net.DialTimeout(network, address, time.Second); err == nil {
			return nil, errors.Join(fmt.Errorf("listen on %s: another process does already", endpoint), c.Close())
		}
		if info, err := os.Lstat(address); err == nil && info.Mode()&os.ModeSocket != 0 {
			_ = os.Remove(address)
		}
	}
	config := net.ListenConfig{KeepAliveConfig: keepAlive()}
	l, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", endpoint, err)
	}
	return l, nil
}

// server accepts peers and serves each in its own goroutines.
type server struct {
	opts  ServerOptions
	own   string
	peers []string
	serve func(ctx context.Context, c *Conn) error
}

// run accepts peers from l until ctx ends, then closes l and waits for their goroutines.
func (s *server) run(ctx context.Context, l net.Listener) error {
	var peers sync.WaitGroup
	defer peers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	room := make(chan struct{}, s.opts.MaxConns)
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %v: %w", l.Addr(), err)
		case err != nil: // out of file descriptors, or a peer that has gone already
			s.opts.Logger.Warn("zmtp: accept failed", "listener", l.Addr(), "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			s.opts.Logger.Warn("zmtp: too many peers", "listener", l.Addr(), "peer", nc.RemoteAddr())
			_ = nc.Close()
			continue
		}
		peers.Go(func() {
			defer func() { <-room }()
			s.peer(ctx, nc)
		})
	}
}

// peer serves one peer until either side ends.
func (s *server) peer(ctx context.Context, nc net.Conn) {
	shake, cancel := context.WithTimeout(ctx, s.opts.Conn.HandshakeTimeout)
	c, err := handshake(shake, nc, s.own, s.peers, s.opts.Conn)
	cancel()
	if err == nil {
		ctx, cancel := context.WithCancel(ctx)
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		err = s.serve(ctx, c)
		stop()
		cancel()
		_ = c.Close()
	}
	if err != nil && ctx.Err() == nil {
		s.opts.Logger.Debug("zmtp: a peer has gone", "peer", nc.RemoteAddr(), "error", err)
	}
}

// splitEndpoint turns tcp://host:port and ipc://path into network and address of package net.
func splitEndpoint(endpoint string) (network, address string, err error) {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	switch {
	case !ok || rest == "":
	case scheme == "tcp":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return "", "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		return "tcp", strings.Replace(rest, "*", "", 1), nil
	case scheme == "ipc":
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("endpoint %q: want tcp://host:port or ipc://path", endpoint)
}

// Offset is the endpoint of a data-parallel rank: engines add the rank to the port. An ipc endpoint has no port
// and belongs to rank 0 alone.
func Offset(endpoint string, rank int) (string, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil || rank == 0 {
		return endpoint, err
	}
	if network != "tcp" {
		return "", fmt.Errorf("endpoint %q has no port to add rank %d to", endpoint, rank)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || rank < 0 || n < 1 || n+rank > 65535 {
		return "", fmt.Errorf("endpoint %q: port %s with rank %d added is no port", endpoint, port, rank)
	}
	if strings.Contains(endpoint, "//*:") {
		host = "*"
		return "tcp://*:" + strconv.Itoa(n+rank), nil
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}
