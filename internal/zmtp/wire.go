// Package zmtp is the part of ZeroMQ that KV cache events need, in Go alone: the message transport
// protocol ZMTP 3.0 and 3.1 (rfc.zeromq.org/spec/23 and /37) with the NULL mechanism over TCP and Unix
// sockets, a publisher, a replay server, and the client side of both.
//
// It replaces a library because events must not harm a router or a node. The pure Go library
// (go-zeromq/zmq4 v0.17) allocates whatever size a peer's frame claims, so 10 bytes from a broken engine end
// the process; it hands heartbeats to the caller as if they were messages; and its publisher writes to one
// subscriber after another, so one that has stopped reading stops all of them. Here every size is bounded
// before memory is allocated, received messages reuse their memory, and each subscriber has a bounded queue of
// its own: if it is too slow, its messages are dropped and counted. Tests run both sides against that library
// and against libzmq.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// ErrProtocol says that the peer does not speak ZMTP 3 with the NULL mechanism, or passes a limit.
var ErrProtocol = errors.New("zmtp: protocol error")

// Flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	greetingBytes = 64
	// maxCommandBytes bounds a command: properties of a handshake, a subscription, a heartbeat.
	maxCommandBytes = 4096
	// maxFrames bounds the frames of a message; events have 3, replays 5.
	maxFrames = 16
	// growBytes is by how much, at most, a message's memory is ahead of what has arrived.
	growBytes = 1 << 20
)

// greeting is the first thing that each side sends: signature, version 3.1, mechanism, role.
func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, 1
	copy(g[12:32], "NULL")
	return g
}

func readGreeting(r io.Reader) error {
	var g [greetingBytes]byte
	// An older peer sends less than a whole greeting: check the signature before waiting for more.
	if _, err := io.ReadFull(r, g[:11]); err != nil {
		return fmt.Errorf("read the peer's greeting: %w", err)
	}
	if g[0] != 0xff || g[9]&1 != 1 || g[10] < 3 {
		return fmt.Errorf("%w: the peer's greeting is %x, not ZMTP 3", ErrProtocol, g[:11])
	}
	if _, err := io.ReadFull(r, g[11:]); err != nil {
		return fmt.Errorf("read the peer's greeting: %w", err)
	}
	mechanism := [20]byte(g[12:32])
	if mechanism != [20]byte{'N', 'U', 'L', 'L'} {
		return fmt.Errorf("%w: the peer wants mechanism %q, only NULL is spoken", ErrProtocol, mechanism[:])
	}
	return nil
}

func appendFrame(b []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(body)))
	} else {
		b = append(b, flags, byte(len(body)))
	}
	return append(b, body...)
}

func appendCommand(b []byte, name string, body []byte) []byte {
	c := append([]byte{byte(len(name))}, name...)
	return appendFrame(b, flagCommand, append(c, body...))
}

// AppendMessage appends the wire form of a message.
func AppendMessage(b []byte, frames ...[]byte) []byte {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	return b
}

// readHead reads the head of a frame, whose body may have up to limit bytes.
func readHead(r *bufio.Reader, limit int) (flags byte, size int, err error) {
	if flags, err = r.ReadByte(); err != nil {
		return 0, 0, err
	}
	var n uint64
	if flags&flagLong == 0 {
		var b byte
		b, err = r.ReadByte()
		n = uint64(b)
	} else {
		var b []byte
		if b, err = r.Peek(8); err == nil {
			n = binary.BigEndian.Uint64(b)
			_, err = r.Discard(8)
		}
	}
	if err != nil {
		return 0, 0, noEOF(err)
	}
	if flags&flagCommand != 0 {
		limit = min(limit, maxCommandBytes)
	}
	if flags&^(flagMore|flagLong|flagCommand) != 0 || flags&flagCommand != 0 && flags&flagMore != 0 {
		return 0, 0, fmt.Errorf("%w: a frame with flags %#x", ErrProtocol, flags)
	}
	if n > uint64(limit) {
		return 0, 0, fmt.Errorf("%w: a frame of %d bytes, allowed are %d", ErrProtocol, n, limit)
	}
	return flags, int(n), nil
}

// appendBody reads n bytes and appends them to b, growing it as they arrive.
func appendBody(b []byte, r *bufio.Reader, n int) ([]byte, error) {
	for n > 0 {
		step := min(n, growBytes)
		at := len(b)
		b = slices.Grow(b, step)[:at+step]
		if _, err := io.ReadFull(r, b[at:]); err != nil {
			return b[:at], noEOF(err)
		}
		n -= step
	}
	return b, nil
}

// noEOF makes an end within a frame an unexpected one.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// splitCommand separates a command's name from its body.
func splitCommand(c []byte) (name string, body []byte, err error) {
	if len(c) == 0 {
		return "", nil, fmt.Errorf("%w: an empty command", ErrProtocol)
	}
	end := 1 + int(c[0]) // an int first: 1 + 255 is 0 in a byte
	if len(c) < end {
		return "", nil, fmt.Errorf("%w: a command of %d bytes without a name", ErrProtocol, len(c))
	}
	return string(c[1:end]), c[end:], nil
}

// ready is the body of the command that ends the NULL handshake.
func ready(socketType, identity string) []byte {
	var b []byte
	for _, p := range [...][2]string{{"Socket-Type", socketType}, {"Identity", identity}} {
		b = append(append(b, byte(len(p[0]))), p[0]...)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p[1]))), p[1]...)
	}
	return b
}

// socketTypeOf finds the socket type among the properties of a peer.
func socketTypeOf(b []byte) (string, error) {
	for len(b) > 0 {
		n := int(b[0])
		if len(b) < 1+n+4 {
			break
		}
		name := string(b[1 : 1+n])
		size := binary.BigEndian.Uint32(b[1+n:])
		b = b[1+n+4:]
		if uint64(size) > uint64(len(b)) {
			break
		}
		if name == "Socket-Type" {
			return string(b[:size]), nil
		}
		b = b[size:]
	}
	return "", fmt.Errorf("%w: the peer does not name its socket type", ErrProtocol)
}

// Message is a received message of one or more frames. The next one received into it reuses its memory. The zero
// value is ready.
type Message struct {
	buf  []byte
	ends []int
}

// Len is the number of frames.
func (m *Message) Len() int { return len(m.ends) }

// Frame is frame i, valid until the message is received into again.
func (m *Message) Frame(i int) []byte {
	from := 0
	if i > 0 {
		from = m.ends[i-1]
	}
	return m.buf[from:m.ends[i]:m.ends[i]]
}

// Cap is the memory that the message holds, in bytes.
func (m *Message) Cap() int { return cap(m.buf) }

func (m *Message) reset() { m.buf, m.ends = m.buf[:0], m.ends[:0] }
