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

// state is what a link knows of its daemon. Every change goes through [link.enter]:
//
//	from          on                                            to         next attempt
//	connected     a call gets no answer in time                 hung       after 9 call timeouts
//	connected     a call breaks otherwise                       absent     at once
//	connected     given up without a complaint, or seen closed  idle       at once
//	all others    an attempt gets no answer in time             hung       after 9 call timeouts
//	all others    the daemon puts an attempt off                putOff     after 1 retry interval, then 2, 4, to 30
//	all others    the daemon refuses an attempt, or its version refused    after 30 retry intervals
//	all others    an attempt fails otherwise                    absent     after 1 retry interval
//	all others    an attempt succeeds                           connected
//
// A caller that needs the connection does not wait for the next attempt's time, except in
// state hung.
type state int

const (
	// idle links have no connection and nothing against the daemon.
	idle state = iota
	connected
	// absent daemons do not accept connections, or broke the last one.
	absent
	// refused means that the daemon does not want this client as it is. The cause may pass,
	// but seldom does, and a registration costs the engine time.
	refused
	// putOff means that the daemon cannot serve this client yet, and soon may.
	putOff
	// hung daemons accept connections and do not answer: a tenth of the engine's time is what
	// they may cost.
	hung
)

// Pauses before the next attempt, in retry intervals and in call timeouts.
const (
	refusedPause = 30
	hungPause    = 9
)

// errOffline means that there is no connection, and the time of the next attempt has not come.
var errOffline = errors.New("kvconnd is not connected")

// memory is what a rank's link connects: nil for the scheduler's.
type memory interface {
	// register runs on every new connection before the first call.
	register(ctx context.Context) error
	// takeBack takes over a connection that was lost, and closes it. It reports whether the
	// daemon surely touches nothing any more.
	takeBack(conn *wire.Conn) bool
}

// link is a connection that comes back by itself. It is not safe for concurrent use.
type link struct {
	opts   Options
	role   string
	rank   int
	memory memory

	state state
	// session numbers the connections: what the daemon was told in one it does not know in
	// the next.
	session uint64
	// retryAt is the time of the next attempt.
	retryAt time.Time
	// putOffs counts the attempts that were put off since the last that succeeded.
	putOffs     uint
	conn        *wire.Conn
	epoch       uint64
	loadTimeout time.Duration
	nextID      uint32
}

func (l *link) enter(to state) {
	from := l.state
	l.state = to
	switch {
	case to == hung:
		l.retryAt = time.Now().Add(hungPause * l.opts.CallTimeout)
	case to == refused:
		l.retryAt = time.Now().Add(refusedPause * l.opts.RetryInterval)
	case to == putOff:
		l.retryAt = time.Now().Add(min(time.Duration(1)<<min(l.putOffs, refusedPause), refusedPause) * l.opts.RetryInterval)
		l.putOffs++
	case to == absent && from != connected:
		l.retryAt = time.Now().Add(l.opts.RetryInterval)
	case to == connected:
		l.session++
		l.retryAt, l.putOffs = time.Time{}, 0
		if from != idle {
			l.opts.Logger.Info("kvconnd is back", "socket", l.opts.Socket)
		}
	}
}

// stateAfter is the state to which an error leads.
func stateAfter(err error) state {
	var answer *answeredError
	switch {
	case errors.Is(err, connector.ErrAgain):
		return putOff
	case errors.As(err, &answer), errors.Is(err, connector.ErrVersion):
		return refused
	case isTimeout(err):
		return hung
	}
	return absent
}

// ensure makes sure that there is a connection. Unless force is set it does not try before
// the time of the next attempt.
func (l *link) ensure(ctx context.Context, force bool) error {
	if l.state == connected {
		return nil
	}
	if time.Now().Before(l.retryAt) && (!force || l.state == hung) {
		return errOffline
	}
	ctx, cancel := context.WithTimeout(ctx, l.opts.CallTimeout)
	defer cancel()
	err := l.connect(ctx)
	if err == nil && l.memory != nil {
		err = l.memory.register(ctx)
	}
	if err == nil {
		l.enter(connected)
		return nil
	}
	if l.state == idle {
		l.opts.Logger.Warn("kvconnd cannot be used, going on without cache", "socket", l.opts.Socket, "err", err,
			"remedy", "start kvconnd on this node, as the same user, with that socket")
	}
	l.hangUp()
	l.enter(stateAfter(err))
	return err
}

func (l *link) connect(ctx context.Context) error {
	dialer := net.Dialer{Timeout: l.opts.CallTimeout}
	c, err := dialer.DialContext(ctx, "unix", l.opts.Socket)
	if err != nil {
		return fmt.Errorf("connect to kvconnd: %w", err)
	}
	l.conn = wire.NewConn(c.(*net.UnixConn))
	l.epoch = 0
	lowest := l.lowestVersion()
	hello := wire.Hello{
		MinVersion: lowest, MaxVersion: wire.MaxVersion,
		Role: l.role, Client: l.opts.Name, Engine: l.opts.Engine, Manifest: l.opts.Manifest.Canonical(), Rank: l.rank, Handoff: l.opts.Handoff,
	}
	var reply wire.HelloReply
	if _, err := l.roundTrip(ctx, wire.OpHello, hello.Append, reply.Decode); err != nil {
		return err
	}
	if reply.Version < lowest || reply.Version > wire.MaxVersion {
		return fmt.Errorf("%w: kvconnd (%s) chose protocol %d, this client speaks %d to %d",
			connector.ErrVersion, reply.Server, reply.Version, lowest, wire.MaxVersion)
	}
	l.loadTimeout = time.Duration(reply.LoadTimeoutMS) * time.Millisecond
	return nil
}

// lowestVersion is that which has all the calls that the client may make. An older daemon would take
// a load by key for one of no blocks, and report it as loaded.
func (l *link) lowestVersion() int {
	switch {
	case l.opts.Manifest.KeyScheme == connector.KeySchemeEngine:
		return wire.MinKeyedVersion
	case l.opts.Handoff:
		return wire.MinHandoffVersion
	}
	return wire.MinVersion
}

// call makes one request on a live connection. An error that leaves the connection in an
// unknown state loses it; an error that the daemon sent does not. again reports that the
// connection was found dead and nothing is at work any more: the request may be repeated.
func (l *link) call(ctx context.Context, op wire.Op, body func([]byte) []byte, decode func([]byte) error) (again bool, err error) {
	if _, err = l.roundTrip(ctx, op, body, decode); err == nil {
		return false, nil
	}
	var answer *answeredError
	if errors.As(err, &answer) {
		return false, err
	}
	l.opts.Logger.Warn("connection to kvconnd lost, going on without cache", "call", op.String(), "err", err)
	l.enter(stateAfter(err))
	return l.hangUp() && l.state != hung, err
}

// answeredError is an answer of kind error, or a request that was not sent: the connection
// is as good as before.
type answeredError struct{ err error }

func (e *answeredError) Error() string { return e.err.Error() }
func (e *answeredError) Unwrap() error { return e.err }

// roundTrip makes a request. The caller closes the files that came with its answer; only
// that to register may have any.
func (l *link) roundTrip(
	ctx context.Context, op wire.Op, body func([]byte) []byte, decode func([]byte) error, files ...*os.File,
) ([]*os.File, error) {
	deadline := time.Now().Add(l.opts.CallTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := l.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	l.nextID++
	switch err := l.conn.Write(wire.Header{ID: l.nextID, Op: op}, body, files...); {
	case errors.Is(err, wire.ErrTooLarge): // nothing was sent: it is this call that fails
		return nil, &answeredError{err}
	case err != nil:
		return nil, fmt.Errorf("send %s: %w", op, bare(err))
	}
	f, err := l.conn.Read()
	if err != nil {
		return nil, fmt.Errorf("await the answer to %s: %w", op, bare(err))
	}
	if err := l.answer(&f, op, decode); err != nil {
		f.CloseFiles()
		return nil, err
	}
	return f.Files, nil
}

// answer checks that f answers the request just made.
func (l *link) answer(f *wire.Frame, op wire.Op, decode func([]byte) error) error {
	switch {
	case (len(f.Files) > 0 && op != wire.OpRegister) || f.ID != l.nextID || f.Op != op || f.Kind == wire.KindRequest || f.Epoch == 0:
		return fmt.Errorf("%w: the answer to %s does not belong to it", connector.ErrProtocol, op)
	case l.epoch != 0 && f.Epoch != l.epoch:
		return fmt.Errorf("%w: epoch changed on one connection", connector.ErrProtocol)
	}
	l.epoch = f.Epoch
	if f.Kind == wire.KindError {
		var e wire.ErrorBody
		if err := e.Decode(f.Body); err != nil {
			return err
		}
		return &answeredError{e.Err()}
	}
	if decode == nil {
		return nil
	}
	return decode(f.Body)
}

// do makes a call, connecting first; force is as in ensure. A connection that was found dead
// is replaced and the call repeated once: a daemon that was restarted between two calls
// shows only at the next one.
func (l *link) do(ctx context.Context, force bool, op wire.Op, body func([]byte) []byte, decode func([]byte) error) error {
	had := l.state == connected
	if err := l.ensure(ctx, force); err != nil {
		return err
	}
	again, err := l.call(ctx, op, body, decode)
	if !again || !had {
		return err
	}
	if err := l.ensure(ctx, true); err != nil {
		return err
	}
	_, err = l.call(ctx, op, body, decode)
	return err
}

// revive connects again where the daemon has closed the connection, for callers that have
// nothing to ask it; force is as in ensure. What is wrong is logged.
func (l *link) revive(ctx context.Context, force bool) {
	if l.conn != nil && l.conn.PeerClosed() {
		l.lose()
	}
	_ = l.ensure(ctx, force)
}

// lose gives up the connection, if there is one, without holding it against the daemon.
func (l *link) lose() {
	if l.conn != nil {
		l.enter(idle)
		l.hangUp()
	}
}

// hangUp ends the connection. It reports whether the daemon surely does nothing any more of
// what was asked over it.
func (l *link) hangUp() bool {
	conn := l.conn
	l.conn = nil
	switch {
	case conn == nil:
		return true
	case l.memory != nil:
		return l.memory.takeBack(conn)
	}
	_ = conn.Close()
	return true
}

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
