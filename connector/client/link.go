package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// errOffline means that there is no connection, and none may be tried yet.
var errOffline = errors.New("kvconnd is not connected")

// link is a connection that comes back by itself. It is not safe for concurrent use.
type link struct {
	opts Options
	role string
	rank int
	// onConnect runs on every new connection before the first call.
	onConnect func(ctx context.Context) error
	// onFiles, if set, takes over descriptors that came with an answer.
	onFiles func(op wire.Op, files []*os.File) error
	// onLost, if set, takes over a connection that was lost, and closes it. It reports
	// whether the daemon surely touches nothing any more.
	onLost func(*wire.Conn) bool

	conn        *wire.Conn
	epoch       uint64
	loadTimeout time.Duration
	nextID      uint32
	nextTry     time.Time
	// hungUntil is set after an attempt that the daemon did not answer in time: even a
	// caller that needs a connection now does not try before.
	hungUntil time.Time
	warned    bool
	// refused is set while the daemon has answered that it does not want this client as it
	// is: nothing may come any more that makes a call.
	refused bool
	// held is set where the connection that was lost last may still be in use by a copy:
	// what was asked over it must not be repeated.
	held bool
}

// ensure makes sure that there is a connection. Unless force is set it tries no more
// often than RetryInterval.
func (l *link) ensure(ctx context.Context, force bool) error {
	if l.conn != nil {
		return nil
	}
	now := time.Now()
	if now.Before(l.hungUntil) || (!force && now.Before(l.nextTry)) {
		return errOffline
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.CallTimeout)
	defer cancel()
	err := l.connect(ctx)
	if err == nil && l.onConnect != nil {
		err = l.onConnect(ctx)
	}
	if err != nil {
		l.drop()
		l.nextTry = time.Now().Add(l.opts.RetryInterval)
		var refused *refusedError
		if l.refused = errors.As(err, &refused); l.refused {
			l.nextTry = time.Now().Add(refusedPause * l.opts.RetryInterval)
		}
		if isTimeout(err) {
			l.hungUntil = time.Now().Add(hungPause * l.opts.CallTimeout)
		}
		if !l.warned {
			l.warned = true
			l.opts.Logger.Warn("kvconnd cannot be used, going on without cache", "socket", l.opts.Socket, "err", err,
				"remedy", "start kvconnd on this node, as the same user, with that socket")
		}
		return err
	}
	l.refused = false
	if l.warned {
		l.warned = false
		l.opts.Logger.Info("kvconnd is back", "socket", l.opts.Socket)
	}
	return nil
}

// refusedPause is how many retry intervals pass before a daemon is asked again that has
// refused: the cause may pass, but seldom does, and a registration costs the engine time.
const refusedPause = 30

// hungPause is how many call timeouts pass between two attempts on a daemon that accepts
// connections and does not answer: a tenth of the engine's time is what it may cost.
const hungPause = 9

func (l *link) connect(ctx context.Context) error {
	dialer := net.Dialer{Timeout: l.opts.CallTimeout}
	c, err := dialer.DialContext(ctx, "unix", l.opts.Socket)
	if err != nil {
		return fmt.Errorf("connect to kvconnd: %w", err)
	}
	l.conn = wire.NewConn(c.(*net.UnixConn))
	l.epoch = 0
	manifest, err := l.opts.Manifest.Canonical()
	if err != nil {
		return err
	}
	lowest := wire.MinVersion
	if l.opts.Handoff {
		lowest = wire.MinHandoffVersion
	}
	hello := wire.Hello{
		MinVersion: lowest, MaxVersion: wire.MaxVersion,
		Role: l.role, Client: l.opts.Name, Engine: l.opts.Engine, Manifest: manifest, Rank: l.rank, Handoff: l.opts.Handoff,
	}
	var reply wire.HelloReply
	if err := l.roundTrip(ctx, wire.OpHello, hello.Append, reply.Decode); err != nil {
		return err
	}
	if reply.Version < lowest || reply.Version > wire.MaxVersion {
		return fmt.Errorf("%w: kvconnd (%s) chose protocol %d, this client speaks %d to %d",
			connector.ErrVersion, reply.Server, reply.Version, lowest, wire.MaxVersion)
	}
	l.loadTimeout = time.Duration(reply.LoadTimeoutMS) * time.Millisecond
	return nil
}

// call makes one request on a live connection. An error that leaves the connection in
// an unknown state drops it; an error that the daemon sent does not.
func (l *link) call(ctx context.Context, op wire.Op, body func([]byte) []byte, decode func([]byte) error, files ...*os.File) error {
	err := l.roundTrip(ctx, op, body, decode, files...)
	if err == nil {
		return nil
	}
	var refused *refusedError
	if !errors.As(err, &refused) {
		l.opts.Logger.Warn("connection to kvconnd lost, going on without cache", "call", op.String(), "err", err)
		l.warned = true
		if isTimeout(err) {
			l.hungUntil = time.Now().Add(hungPause * l.opts.CallTimeout)
		}
		l.lose()
	}
	return err
}

// refusedError is an answer of kind error.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

func (l *link) roundTrip(ctx context.Context, op wire.Op, body func([]byte) []byte, decode func([]byte) error, files ...*os.File) error {
	deadline := time.Now().Add(l.opts.CallTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := l.conn.SetDeadline(deadline); err != nil {
		return err
	}
	l.nextID++
	switch err := l.conn.Write(wire.Header{ID: l.nextID, Op: op}, body, files...); {
	case errors.Is(err, wire.ErrTooLarge): // nothing was sent: it is this call that fails
		return &refusedError{err}
	case err != nil:
		return fmt.Errorf("send %s: %w", op, bare(err))
	}
	f, err := l.conn.Read()
	if err != nil {
		return fmt.Errorf("await the answer to %s: %w", op, bare(err))
	}
	return l.answer(&f, op, decode)
}

// answer checks that f answers the request just made.
func (l *link) answer(f *wire.Frame, op wire.Op, decode func([]byte) error) error {
	switch {
	case (len(f.Files) > 0 && l.onFiles == nil) || f.ID != l.nextID || f.Op != op || f.Kind == wire.KindRequest || f.Epoch == 0:
		for _, file := range f.Files {
			_ = file.Close()
		}
		return fmt.Errorf("%w: the answer to %s does not belong to it", connector.ErrProtocol, op)
	case l.epoch != 0 && f.Epoch != l.epoch:
		return fmt.Errorf("%w: epoch changed on one connection", connector.ErrProtocol)
	}
	l.epoch = f.Epoch
	if len(f.Files) > 0 {
		if err := l.onFiles(op, f.Files); err != nil {
			return err
		}
	}
	if f.Kind == wire.KindError {
		var e wire.ErrorBody
		if err := e.Decode(f.Body); err != nil {
			return err
		}
		return &refusedError{e.Err()}
	}
	if decode == nil {
		return nil
	}
	return decode(f.Body)
}

// do makes a call, connecting first. Unless force is set it does that no more often than
// RetryInterval. A connection that was found dead is replaced and the call repeated once:
// a daemon that was restarted between two calls shows only at the next one. It is not
// repeated where the first attempt may still be at work.
func (l *link) do(ctx context.Context, force bool, op wire.Op, body func([]byte) []byte, decode func([]byte) error) error {
	had := l.conn != nil
	if err := l.ensure(ctx, force); err != nil {
		return err
	}
	err := l.call(ctx, op, body, decode)
	if err == nil || l.conn != nil || !had || l.held || isTimeout(err) {
		return err
	}
	if err := l.ensure(ctx, true); err != nil {
		return err
	}
	return l.call(ctx, op, body, decode)
}

// revive connects again where the daemon has closed the connection, for callers that have
// nothing to ask it; force is as in ensure. What is wrong is logged.
func (l *link) revive(ctx context.Context, force bool) {
	if l.conn != nil && l.conn.PeerClosed() {
		l.lose()
	}
	_ = l.ensure(ctx, force)
}

// lose gives up a connection that did not do its work.
func (l *link) lose() {
	if l.conn == nil || l.onLost == nil {
		l.held = false
		l.drop()
		return
	}
	conn := l.conn
	l.conn = nil
	l.held = !l.onLost(conn)
}

// isTimeout reports whether err is a passed deadline.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// bare takes the socket's own name off an error: the daemon made the socket under
// another one.
func bare(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// drop closes the connection.
func (l *link) drop() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
	}
}
