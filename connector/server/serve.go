package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// maxHelloBytes bounds the body of a hello: a manifest, names, and what later versions add.
const maxHelloBytes = 4 * connector.MaxManifestBytes

// serveConn runs one connection to its end.
func (s *Server) serveConn(ctx context.Context, conn *wire.Conn, peer Peer) error {
	if err := conn.SetReadDeadline(time.Now().Add(s.opts.HelloTimeout)); err != nil {
		return err
	}
	// Nothing large is taken from an unknown client.
	conn.LimitBodies(maxHelloBytes)
	f, err := conn.Read()
	conn.LimitBodies(wire.MaxBodyBytes)
	if err != nil {
		return s.refuse(conn, f.Header, err)
	}
	h, err := s.hello(ctx, conn, &f, &peer)
	if err != nil {
		_ = s.fail(conn, f.Header, err)
		return &refusedError{peer, err}
	}
	defer h.close()
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if ctx.Err() != nil { // the deadline set by closeConns was just lifted
		return nil
	}
	reply := wire.HelloReply{
		Version: h.version, Server: s.opts.Version, Namespace: h.namespace.String(),
		LoadTimeoutMS: int(s.opts.LoadTimeout / time.Millisecond),
	}
	if err := s.send(conn, f.Header, wire.KindReply, reply.Append(conn.Begin())); err != nil {
		return err
	}
	for {
		if err := s.serveFrame(ctx, conn, h); err != nil {
			return err
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
		return s.refuse(conn, f.Header, err)
	}
	out, err := h.handle(ctx, &f, conn.Begin())
	f.CloseFiles()
	s.requests.Add(1)
	switch {
	case errors.Is(err, connector.ErrProtocol):
		return s.refuse(conn, f.Header, err)
	case err != nil:
		return s.fail(conn, f.Header, err)
	case len(out)-wire.HeaderBytes > wire.MaxBodyBytes:
		err := fmt.Errorf("the answer to %s has %d bytes, a frame at most %d", f.Op, len(out)-wire.HeaderBytes, wire.MaxBodyBytes)
		s.opts.Logger.Error("an engine's request fails, its connection goes on", "err", err,
			"remedy", "report it: what is offered and planned is meant to fit")
		return s.fail(conn, f.Header, err)
	}
	return s.send(conn, f.Header, wire.KindReply, out, h.files...)
}

// refuse tells a client that it broke the protocol, if it can, and returns the error for
// the log.
func (s *Server) refuse(conn *wire.Conn, h wire.Header, err error) error {
	if errors.Is(err, connector.ErrProtocol) {
		_ = s.fail(conn, h, err)
	}
	return err
}

// fail answers with an error.
func (s *Server) fail(conn *wire.Conn, h wire.Header, err error) error {
	if !h.Op.Valid() { // garbage; the answer must not be
		h.Op = wire.OpHello
	}
	body := wire.NewErrorBody(err)
	return s.send(conn, h, wire.KindError, body.Append(conn.Begin()))
}

func (s *Server) send(conn *wire.Conn, h wire.Header, kind wire.Kind, frame []byte, files ...*os.File) error {
	if err := conn.SetWriteDeadline(time.Now().Add(s.opts.WriteTimeout)); err != nil {
		return err
	}
	return conn.Send(wire.Header{ID: h.ID, Op: h.Op, Kind: kind, Epoch: s.opts.Epoch}, frame, files...)
}
