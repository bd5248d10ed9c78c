package zmtp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// connLimits bound a connection.
type connLimits struct {
	// messageBytes bounds a received message.
	messageBytes int
	// handshake bounds connecting and the handshake together.
	handshake time.Duration
	// write bounds one write: a peer that reads nothing for that long is gone.
	write time.Duration
}

// clientLimits allow messages of 64 MiB: a batch of events for 10M tokens.
func clientLimits() connLimits {
	return connLimits{messageBytes: 64 << 20, handshake: 5 * time.Second, write: 10 * time.Second}
}

// Socket types.
const (
	typePub    = "PUB"
	typeXPub   = "XPUB"
	typeSub    = "SUB"
	typeXSub   = "XSUB"
	typeDealer = "DEALER"
	typeRouter = "ROUTER"
	typeReq    = "REQ"
)

// Conn is a connection to one peer. One goroutine may receive while others send.
type Conn struct {
	c       net.Conn
	r       *bufio.Reader
	limits  connLimits
	command []byte // of readers

	write sync.Mutex
	out   []byte
}

// keepAlive finds out within half a minute that a peer's machine has gone. Silence does not show that: a
// publisher may have nothing to say for any time.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}

// DialSub connects to a publisher and subscribes to the topics that begin with topic; all topics begin with an
// empty one.
func DialSub(ctx context.Context, endpoint, topic string) (*Conn, error) {
	c, err := dial(ctx, endpoint, typeSub, []string{typePub, typeXPub}, clientLimits())
	if err != nil {
		return nil, err
	}
	if err := c.subscribe(topic); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe at %s: %w", endpoint, err), c.Close())
	}
	return c, nil
}

// DialDealer connects to a ROUTER, the kind of socket on which engines serve replays.
func DialDealer(ctx context.Context, endpoint string) (*Conn, error) {
	return dial(ctx, endpoint, typeDealer, []string{typeRouter}, clientLimits())
}

func dial(ctx context.Context, endpoint, own string, peers []string, limits connLimits) (*Conn, error) {
	network, address, err := splitEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, limits.handshake)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive()}
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	c, err := handshake(ctx, nc, own, peers, limits)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return c, nil
}

// handshake makes a connection of nc, which it closes if it fails or ctx ends.
func handshake(ctx context.Context, nc net.Conn, own string, peers []string, limits connLimits) (_ *Conn, err error) {
	defer func() {
		if err != nil {
			_ = nc.Close()
		}
	}()
	c := &Conn{c: nc, r: bufio.NewReaderSize(nc, 64<<10), limits: limits}
	stop := context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	hello := appendCommand(nil, "READY", ready(own, ""))
	if _, err := nc.Write(greeting()); err != nil {
		return nil, fmt.Errorf("send the greeting: %w", err)
	}
	if err := readGreeting(c.r); err != nil {
		return nil, err
	}
	if _, err := nc.Write(hello); err != nil {
		return nil, fmt.Errorf("send the handshake: %w", err)
	}
	name, body, err := c.readCommand()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the handshake: %w", err)
	case name == "ERROR":
		return nil, fmt.Errorf("%w: the peer refuses: %q", ErrProtocol, body)
	case name != "READY":
		return nil, fmt.Errorf("%w: command %q in the handshake", ErrProtocol, name)
	}
	peer, err := socketTypeOf(body)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(peers, peer) {
		return nil, fmt.Errorf("%w: the peer is a %s, want %v", ErrProtocol, peer, peers)
	}
	if !stop() {
		return nil, fmt.Errorf("handshake: %w", context.Cause(ctx))
	}
	return c, nil
}

// readCommand reads a frame that must be a command. Its body is valid until the next read.
func (c *Conn) readCommand() (name string, body []byte, err error) {
	flags, n, err := readHead(c.r, maxCommandBytes)
	if err != nil {
		return "", nil, err
	}
	if flags&flagCommand == 0 {
		return "", nil, fmt.Errorf("%w: a message before the handshake's end", ErrProtocol)
	}
	if c.command, err = appendBody(c.command[:0], c.r, n); err != nil {
		return "", nil, err
	}
	return splitCommand(c.command)
}

// subscribe asks a publisher for a topic, by a message, which all versions understand.
func (c *Conn) subscribe(topic string) error {
	return c.Send(append([]byte{1}, topic...))
}

// Send sends a message.
func (c *Conn) Send(frames ...[]byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	c.out = AppendMessage(c.out[:0], frames...)
	return c.flush()
}

// flush writes c.out; c.write is held.
func (c *Conn) flush() error {
	_, err := c.writeRaw(c.out)
	if cap(c.out) > growBytes {
		c.out = nil
	}
	return err
}

// writeRaw writes bytes of the wire form within the write timeout.
func (c *Conn) writeRaw(b []byte) (int, error) {
	if err := c.c.SetWriteDeadline(time.Now().Add(c.limits.write)); err != nil {
		return 0, err
	}
	return c.c.Write(b)
}

// Recv receives the next message into m, and answers the peer's heartbeats. It ends with the connection:
// another goroutine stops it with [Conn.Close].
func (c *Conn) Recv(m *Message) error {
	for {
		m.reset()
		command, err := c.readMessage(m)
		if err != nil {
			return err
		}
		if !command {
			return nil
		}
		if _, _, err := c.handleCommand(m.Frame(0)); err != nil {
			return err
		}
	}
}

// handleCommand answers a heartbeat and returns what the command was.
func (c *Conn) handleCommand(frame []byte) (name string, body []byte, err error) {
	name, body, err = splitCommand(frame)
	if err != nil || name != "PING" {
		return name, body, err
	}
	if len(body) < 2 || len(body) > 2+16 { // time to live, context
		return "", nil, fmt.Errorf("%w: a heartbeat of %d bytes", ErrProtocol, len(body))
	}
	c.write.Lock()
	defer c.write.Unlock()
	c.out = appendCommand(c.out[:0], "PONG", body[2:])
	return name, body, c.flush()
}

// readMessage reads the frames of a message, or one command.
func (c *Conn) readMessage(m *Message) (command bool, err error) {
	for {
		flags, n, err := readHead(c.r, c.limits.messageBytes-len(m.buf))
		if err != nil {
			return false, err
		}
		if flags&flagCommand != 0 && len(m.ends) > 0 || len(m.ends) == maxFrames {
			return false, fmt.Errorf("%w: a command, or too many frames, in a message", ErrProtocol)
		}
		if m.buf, err = appendBody(m.buf, c.r, n); err != nil {
			return false, err
		}
		m.ends = append(m.ends, len(m.buf))
		if flags&flagMore == 0 {
			return flags&flagCommand != 0, nil
		}
	}
}

// Close ends the connection and any Recv that waits.
func (c *Conn) Close() error { return c.c.Close() }

// AcceptSub waits for a publisher to connect to l and subscribes like [DialSub]. It is for engines that connect
// to the router's endpoint instead of binding one. Peers that are no publishers are turned away.
func AcceptSub(ctx context.Context, l net.Listener, topic string) (*Conn, error) {
	limits := clientLimits()
	deadline, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), errors.ErrUnsupported)
	}
	if err := deadline.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = deadline.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	nc, err := l.Accept()
	if err != nil {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), err)
	}
	shake, cancel := context.WithTimeout(ctx, limits.handshake)
	defer cancel()
	c, err := handshake(shake, nc, typeSub, []string{typePub, typeXPub}, limits)
	if err == nil {
		if err = c.subscribe(topic); err != nil {
			_ = c.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("publisher at %v: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}
