package server

import (
	"cmp"
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
	// MaxProcessConns bounds the connections of one process, so that one that opens them
	// without end leaves most to others. Default 128: a process has one or two, unless it
	// runs many ranks.
	MaxProcessConns int
	// UID is the user that may connect besides root. The default of 0 is meant as is.
	UID int
	// Access says who else may. It must be valid.
	Access Access
	Logger *slog.Logger
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.HelloTimeout = cmp.Or(o.HelloTimeout, 5*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 5*time.Second)
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.MaxProcessConns = cmp.Or(o.MaxProcessConns, 128)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
}

// Stats counts what a server has seen. The tags are those of package counters.
type Stats struct {
	// Connections are open now; Accepted and Refused count since the start, the latter
	// those with the wrong credentials, above a limit, or turned away for want of descriptors.
	Connections    int    `json:"connections" metric:"connections" help:"Connections of engines and their ranks."`
	Accepted       uint64 `json:"accepted"`
	Refused        uint64 `json:"refused" metric:"connections_refused_total" help:"Connections that were refused: their user may not connect, or there were too many."`
	ProtocolErrors uint64 `json:"protocol_errors" metric:"protocol_errors_total" help:"Connections closed because the client broke the protocol."`
	// Requests counts requests answered.
	Requests uint64 `json:"requests"`
}

// Server serves connections. Use [New].
type Server struct {
	opts    Options
	backend Backend
	wg      sync.WaitGroup

	admission *admission
	sessions  sessions
	refusals  refusals

	accepted, refused, protocolErrors, requests atomic.Uint64
	// unwatched is used to say once that peers' processes cannot be watched.
	unwatched sync.Once
}

// New returns a server that opens its sessions at backend.
func New(o Options, backend Backend) *Server {
	o.EnsureDefaults()
	return &Server{opts: o, backend: backend, admission: newAdmission(&o)}
}

// Stats returns the counters.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.admission.len(), Accepted: s.accepted.Load(), Refused: s.refused.Load(),
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
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	a := &acceptor{l: l, opts: &s.opts, refused: func() { s.refused.Add(1) }}
	defer a.close()
	for {
		c, err := a.next(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		default:
			return err
		}
		conn, pid, err := s.admission.admit(c)
		if err != nil {
			s.refused.Add(1)
			s.refusals.warn(s.opts.Logger, err)
			_ = c.Close()
			continue
		}
		s.accepted.Add(1)
		s.start(ctx, conn, c, pid)
	}
}

// refusals keeps a process that connects again and again from filling the log.
type refusals struct{ last time.Time }

// refusalInterval is the shortest time between two lines about connections refused.
const refusalInterval = time.Second

func (r *refusals) warn(logger *slog.Logger, err error) {
	now := time.Now()
	if !r.last.IsZero() && now.Sub(r.last) < refusalInterval {
		return
	}
	r.last = now
	logger.Warn("engine connection refused", "err", err,
		"remedy", "run engine and daemon as the same user, or set allow_uids, allow_gids or socket_group of the daemon; a daemon serves the ranks of one node, each over one connection or two")
}

func (s *Server) start(ctx context.Context, conn *wire.Conn, raw *net.UnixConn, pid int) {
	if ctx.Err() != nil { // Serve may have closed all already
		_ = conn.Close()
	}
	s.wg.Go(func() {
		defer func() {
			// The session is closed: nothing of it is at work, whoever has a duplicate of the socket.
			_ = conn.Shutdown()
			_ = conn.Close()
			s.admission.leave(conn)
		}()
		peer := Peer{PID: pid}
		connCtx, end := context.WithCancel(ctx)
		defer end()
		// Whoever lifts a deadline looks at connCtx afterwards. So it must have ended before wake sets one: that ctx has
		// ended is not enough.
		defer context.AfterFunc(connCtx, func() { wake(conn) })()
		stop, err := s.watch(raw, peer.PID, end)
		// A session may end its connection itself: the client connects and registers again.
		peer.HangUp = end
		peer.Connection = conn.Duplicate
		if err != nil {
			s.refused.Add(1)
			s.opts.Logger.Warn("engine connection closed: its process cannot be watched", peer.Process(), "err", err,
				"remedy", "raise the daemon's limit of open files (LimitNOFILE, ulimit -n)")
			return
		}
		defer stop()
		s.ended(ctx, connCtx, peer, s.serveConn(connCtx, end, conn, peer))
	})
}

func (s *Server) ended(ctx, connCtx context.Context, peer Peer, err error) {
	var refused *refusedError
	switch {
	case err == nil && connCtx.Err() == nil, errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), ctx.Err() != nil:
	case errors.Is(err, connector.ErrProtocol), errors.Is(err, connector.ErrVersion):
		s.protocolErrors.Add(1)
		s.opts.Logger.Warn("engine connection closed: the client broke the protocol", peer.Process(), "err", err,
			"remedy", "update the older of kvconnd and the engine's connector")
	case errors.As(err, &refused):
		s.opts.Logger.Warn("an engine was refused and goes on without cache", peer.Process(),
			"engine", refused.peer.Engine, "client", refused.peer.Client, "err", refused.err,
			"remedy", "see err: it is in what the engine asked for, or in the store; update the older side where versions differ")
	case connCtx.Err() != nil:
		s.opts.Logger.Info("engine connection closed: its process has ended, or is to register again", peer.Process())
	default:
		s.opts.Logger.Info("engine connection ended", peer.Process(), "err", err)
	}
}

// wake makes a connection's reader return: its own goroutine closes it.
func wake(c *wire.Conn) { _ = c.SetDeadline(time.Unix(1, 0)) }

// maxHelloBytes bounds the body of a hello: a manifest, names, and what later versions add.
const maxHelloBytes = 4 * connector.MaxManifestBytes

// serveConn runs one connection to its end. end ends ctx.
func (s *Server) serveConn(ctx context.Context, end context.CancelFunc, conn *wire.Conn, peer Peer) error {
	if err := conn.SetReadDeadline(time.Now().Add(s.opts.HelloTimeout)); err != nil {
		return err
	}
	if ctx.Err() != nil { // the deadline set by wake was just lifted
		return nil
	}
	// Nothing large is taken from an unknown client.
	conn.LimitBodies(maxHelloBytes)
	f, err := conn.Read()
	conn.LimitBodies(wire.MaxBodyBytes)
	if err != nil {
		return s.refuse(ctx, conn, f.Header, err)
	}
	h, err := s.hello(ctx, end, conn, &f, &peer)
	if err != nil {
		_ = s.fail(ctx, conn, f.Header, err)
		return &refusedError{peer, err}
	}
	defer s.closeHandler(h)
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if ctx.Err() != nil { // the deadline set by wake was just lifted
		return nil
	}
	reply := wire.HelloReply{
		Version: h.version, Server: s.opts.Version, Namespace: h.namespace.String(),
		LoadTimeoutMS: int(s.opts.LoadTimeout / time.Millisecond),
	}
	if h.session != nil && !h.channel {
		reply.Session = h.session.id[:]
	}
	if err := s.send(ctx, conn, f.Header, wire.KindReply, reply.Append(conn.Begin())); err != nil {
		return err
	}
	for {
		err := s.serveFrame(ctx, conn, h)
		switch {
		case h.channel && h.session.hasEnded():
			return net.ErrClosed // by this side
		case err != nil:
			return err
		case ctx.Err() != nil: // a call that waited has lifted the deadline set by wake
			return nil
		}
	}
}

// refusedError says that an engine was not let in, for what its hello said or because no
// session could be opened.
type refusedError struct {
	peer Peer
	err  error
}

func (e *refusedError) Error() string { return "refused: " + e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// serveFrame reads one request and answers it. An error ends the connection.
func (s *Server) serveFrame(ctx context.Context, conn *wire.Conn, h *handler) error {
	f, err := conn.Read()
	if err != nil {
		return s.refuse(ctx, conn, f.Header, err)
	}
	out, err := h.handle(ctx, &f, conn.Begin())
	f.CloseFiles()
	s.requests.Add(1)
	switch {
	case errors.Is(err, connector.ErrProtocol), errors.Is(err, connector.ErrVersion):
		// A call that the worker has not counted must not be followed by others
		// (gpu.Batch.AfterCall).
		_ = s.fail(ctx, conn, f.Header, err)
		return err
	case err != nil:
		return s.fail(ctx, conn, f.Header, err)
	case len(out)-wire.HeaderBytes > wire.MaxBodyBytes:
		err := fmt.Errorf("the answer to %s has %d bytes, a frame at most %d", f.Op, len(out)-wire.HeaderBytes, wire.MaxBodyBytes)
		s.opts.Logger.Error("an engine's request fails, its connection goes on", "err", err,
			"remedy", "report it: what is offered and planned is meant to fit")
		return s.fail(ctx, conn, f.Header, err)
	}
	return s.send(ctx, conn, f.Header, wire.KindReply, out, h.files...)
}

// refuse tells a client that it broke the protocol, if it can, and returns the error for
// the log.
func (s *Server) refuse(ctx context.Context, conn *wire.Conn, h wire.Header, err error) error {
	if errors.Is(err, connector.ErrProtocol) {
		_ = s.fail(ctx, conn, h, err)
	}
	return err
}

func (s *Server) fail(ctx context.Context, conn *wire.Conn, h wire.Header, err error) error {
	if !h.Op.Valid() { // garbage; the answer must not be
		h.Op = wire.OpHello
	}
	body := wire.NewErrorBody(err)
	return s.send(ctx, conn, h, wire.KindError, body.Append(conn.Begin()))
}

// send answers, unless ctx has ended.
func (s *Server) send(ctx context.Context, conn *wire.Conn, h wire.Header, kind wire.Kind, frame []byte, files ...*os.File) error {
	if err := conn.SetWriteDeadline(time.Now().Add(s.opts.WriteTimeout)); err != nil {
		return err
	}
	// ctx ends before wake sets its deadline. If it has ended, that deadline was just lifted; if not, it is yet to come.
	if ctx.Err() != nil {
		return net.ErrClosed
	}
	return conn.Send(wire.Header{ID: h.ID, Op: h.Op, Kind: kind, Epoch: s.opts.Epoch}, frame, files...)
}
