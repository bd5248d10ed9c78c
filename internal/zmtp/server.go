package zmtp

import (
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

// serverLimits bound what a server keeps for its peers.
type serverLimits struct {
	// conns is how many peers are served at one time; others are refused.
	conns int
	// queueMessages and queueBytes bound what waits for a slow subscriber; the rest is dropped.
	queueMessages int
	queueBytes    int64
	conn          connLimits
}

// server accepts peers and serves each in its own goroutines.
type server struct {
	limits   serverLimits
	listener net.Listener
	logger   *slog.Logger // receives what happens to peers
	own      string
	peers    []string
	serve    func(ctx context.Context, c *Conn) error
}

// newServer makes a server of peers that send subscriptions and replay requests only. The queue of one has
// room for some seconds of a busy engine.
func newServer(l net.Listener, logger *slog.Logger, own string, peers ...string) server {
	limits := serverLimits{conns: 256, queueMessages: 8192, queueBytes: 64 << 20, conn: clientLimits()}
	limits.conn.messageBytes = maxCommandBytes
	return server{limits: limits, listener: l, logger: logger, own: own, peers: peers}
}

// Addr is where the server listens.
func (s *server) Addr() net.Addr { return s.listener.Addr() }

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

// Run serves peers until ctx ends, then closes the listener and waits for their goroutines.
func (s *server) Run(ctx context.Context) error {
	l := s.listener
	var peers sync.WaitGroup
	defer peers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = l.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	room := make(chan struct{}, s.limits.conns)
	for {
		nc, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = nc.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on %v: %w", l.Addr(), err)
		case err != nil: // out of file descriptors, or a peer that has gone already
			s.logger.Warn("zmtp: accept failed", "listener", l.Addr(), "error", err)
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			s.logger.Warn("zmtp: too many peers", "listener", l.Addr(), "peer", nc.RemoteAddr())
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
	shake, cancel := context.WithTimeout(ctx, s.limits.conn.handshake)
	c, err := handshake(shake, nc, s.own, s.peers, s.limits.conn)
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
		s.logger.Debug("zmtp: a peer has gone", "peer", nc.RemoteAddr(), "error", err)
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
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(n+rank)), nil
}
