package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// Options configure a Server.
type Options struct {
	// Epoch is the random id of this daemon start, not 0.
	Epoch uint64
	// Version is the daemon's name and version, told to clients.
	Version string
	// LoadTimeout is told to clients: the time in which every load ends.
	LoadTimeout time.Duration
	// HelloTimeout bounds the time between connecting and hello. Default 5 s: a client
	// sends hello at once, so only a broken one needs longer.
	HelloTimeout time.Duration
	// WriteTimeout bounds sending an answer. Default 5 s: answers are small, so only a
	// client that reads nothing lets it pass.
	WriteTimeout time.Duration
	// MaxConns bounds the connections. Default 1,024: far above the ranks of a node.
	MaxConns int
	// UID is the user that may connect besides root. The default of 0 is meant as is.
	UID    int
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	if o.HelloTimeout == 0 {
		o.HelloTimeout = 5 * time.Second
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = 5 * time.Second
	}
	if o.MaxConns == 0 {
		o.MaxConns = 1024
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Stats counts what a server has seen.
type Stats struct {
	// Connections are open now; Accepted and Refused count since the start, the latter
	// those with the wrong credentials or above the limit.
	Connections int    `json:"connections"`
	Accepted    uint64 `json:"accepted"`
	Refused     uint64 `json:"refused"`
	// ProtocolErrors counts connections closed because the client broke the protocol.
	ProtocolErrors uint64 `json:"protocol_errors"`
	// Requests counts requests answered.
	Requests uint64 `json:"requests"`
}

// Server serves connections. Use [New].
type Server struct {
	opts    Options
	backend Backend
	wg      sync.WaitGroup

	mu    sync.Mutex
	conns map[*wire.Conn]struct{}

	accepted, refused, protocolErrors, requests atomic.Uint64
	// unwatched is used to say once that peers' processes cannot be watched.
	unwatched sync.Once
}

// New returns a server that opens its sessions at backend.
func New(o Options, backend Backend) *Server {
	o.EnsureDefaults()
	return &Server{opts: o, backend: backend, conns: make(map[*wire.Conn]struct{})}
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	n := len(s.conns)
	s.mu.Unlock()
	return Stats{
		Connections: n, Accepted: s.accepted.Load(), Refused: s.refused.Load(),
		ProtocolErrors: s.protocolErrors.Load(), Requests: s.requests.Load(),
	}
}

// Serve accepts connections until ctx ends, then closes all of them and returns once
// their sessions are closed. It closes l.
func (s *Server) Serve(ctx context.Context, l *Listener) error {
	defer s.wg.Wait()
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = l.Close()
		s.closeConns()
	})
	defer stop()
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept on the engine socket: %w", err)
		default:
			// Out of descriptors, most likely: those that are connected go on.
			s.opts.Logger.Error("cannot accept an engine's connection, trying again", "err", err,
				"remedy", "raise the daemon's limit of open files (LimitNOFILE, ulimit -n)")
			pause(ctx, acceptPause)
			continue
		}
		if err := s.admit(c); err != nil {
			s.refused.Add(1)
			s.opts.Logger.Warn("engine connection refused", "err", err,
				"remedy", "run engine and daemon as the same user; a daemon serves the ranks of one node")
			_ = c.Close()
			continue
		}
		s.accepted.Add(1)
		s.start(ctx, wire.NewConn(c), c)
	}
}

// acceptPause is the time between attempts to accept while the system refuses.
const acceptPause = 100 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// admit checks the peer's user and the number of connections.
func (s *Server) admit(c *net.UnixConn) error {
	cred, err := peerCredentials(c)
	if err != nil {
		return err
	}
	if cred.Uid != 0 && int(cred.Uid) != s.opts.UID {
		return fmt.Errorf("process %d runs as user %d; allowed are %d and root", cred.Pid, cred.Uid, s.opts.UID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.opts.MaxConns {
		return fmt.Errorf("%d connections are open, the most allowed", len(s.conns))
	}
	return nil
}

func (s *Server) start(ctx context.Context, conn *wire.Conn, raw *net.UnixConn) {
	s.mu.Lock()
	s.conns[conn] = struct{}{}
	s.mu.Unlock()
	if ctx.Err() != nil { // closeConns may have run already
		_ = conn.Close()
	}
	s.wg.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			_ = conn.Close()
		}()
		var peer Peer
		if cred, err := peerCredentials(raw); err == nil {
			peer.PID = int(cred.Pid)
		}
		connCtx, end := context.WithCancel(ctx)
		defer end()
		stop := s.watch(raw, peer.PID, func() {
			end()
			wake(conn)
		})
		defer stop()
		s.ended(ctx, connCtx, peer, s.serveConn(connCtx, conn, peer))
	})
}

// ended logs why a connection ended.
func (s *Server) ended(ctx, connCtx context.Context, peer Peer, err error) {
	var refused *refusedError
	switch {
	case err == nil && connCtx.Err() == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), ctx.Err() != nil:
	case errors.Is(err, connector.ErrProtocol), errors.Is(err, connector.ErrVersion):
		s.protocolErrors.Add(1)
		s.opts.Logger.Warn("engine connection closed: the client broke the protocol", "pid", peer.PID, "err", err,
			"remedy", "update the older of kvconnd and the engine's connector")
	case errors.As(err, &refused):
		s.opts.Logger.Warn("an engine was refused and goes on without cache", "pid", peer.PID,
			"engine", refused.peer.Engine, "client", refused.peer.Client, "err", refused.err,
			"remedy", "see err: it is in what the engine asked for, or in the store; update the older side where versions differ")
	case connCtx.Err() != nil:
		s.opts.Logger.Info("engine process ended, its connection is closed", "pid", peer.PID)
	default:
		s.opts.Logger.Info("engine connection ended", "pid", peer.PID, "err", err)
	}
}

// wake makes a connection's reader return: its own goroutine closes it.
func wake(c *wire.Conn) { _ = c.SetDeadline(time.Unix(1, 0)) }

func (s *Server) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		wake(c)
	}
}
