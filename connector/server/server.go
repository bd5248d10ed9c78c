package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
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
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	defer s.wg.Wait()
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
			s.opts.Logger.Error("cannot accept an engine's connection, trying again", "err", err)
			pause(ctx, acceptPause)
			continue
		}
		if err := s.admit(c); err != nil {
			s.refused.Add(1)
			s.opts.Logger.Warn("engine connection refused", "err", err)
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
		err := s.serveConn(ctx, conn, peer)
		switch {
		case err == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), ctx.Err() != nil:
		case errors.Is(err, connector.ErrProtocol), errors.Is(err, connector.ErrVersion):
			s.protocolErrors.Add(1)
			s.opts.Logger.Warn("engine connection closed: the client broke the protocol", "pid", peer.PID, "err", err)
		default:
			s.opts.Logger.Info("engine connection ended", "pid", peer.PID, "err", err)
		}
	})
}

func (s *Server) closeConns() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		// Only wake the reader: the connection's goroutine closes it.
		_ = c.SetDeadline(time.Unix(1, 0))
	}
}

// serveConn runs one connection to its end.
func (s *Server) serveConn(ctx context.Context, conn *wire.Conn, peer Peer) error {
	if err := conn.SetReadDeadline(time.Now().Add(s.opts.HelloTimeout)); err != nil {
		return err
	}
	f, err := conn.Read()
	if err != nil {
		return s.refuse(conn, f.Header, err)
	}
	h, err := s.hello(ctx, &f, peer)
	if err != nil {
		_ = s.fail(conn, f.Header, err)
		return err
	}
	defer h.close()
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if ctx.Err() != nil { // the deadline set by closeConns was just lifted
		return nil
	}
	reply := wire.HelloReply{
		Version: wire.MaxVersion, Server: s.opts.Version, Namespace: h.namespace.String(),
		LoadTimeoutMS: int(s.opts.LoadTimeout / time.Millisecond),
	}
	if err := s.reply(conn, f.Header, reply.Append); err != nil {
		return err
	}
	for {
		f, err := conn.Read()
		if err != nil {
			return s.refuse(conn, f.Header, err)
		}
		a, err := h.handle(ctx, &f)
		closeFiles(f.Files)
		s.requests.Add(1)
		if errors.Is(err, connector.ErrProtocol) {
			return s.refuse(conn, f.Header, err)
		}
		if err != nil {
			err = s.fail(conn, f.Header, err)
		} else {
			err = s.reply(conn, f.Header, a.body, a.files...)
		}
		if err != nil {
			return err
		}
	}
}

// refuse tells a client that broke the protocol so, as far as possible, and returns
// the error for the log.
func (s *Server) refuse(conn *wire.Conn, h wire.Header, err error) error {
	if errors.Is(err, connector.ErrProtocol) {
		_ = s.fail(conn, h, err)
	}
	return err
}

func (s *Server) reply(conn *wire.Conn, h wire.Header, body func([]byte) []byte, files ...*os.File) error {
	return s.send(conn, h, wire.KindReply, body, files...)
}

func (s *Server) fail(conn *wire.Conn, h wire.Header, err error) error {
	if !h.Op.Valid() { // garbage; the answer must not be
		h.Op = wire.OpHello
	}
	body := wire.NewErrorBody(err)
	return s.send(conn, h, wire.KindError, body.Append)
}

func (s *Server) send(conn *wire.Conn, h wire.Header, kind wire.Kind, body func([]byte) []byte, files ...*os.File) error {
	if err := conn.SetWriteDeadline(time.Now().Add(s.opts.WriteTimeout)); err != nil {
		return err
	}
	return conn.Write(wire.Header{ID: h.ID, Op: h.Op, Kind: kind, Epoch: s.opts.Epoch}, body, files...)
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
