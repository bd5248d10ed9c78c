package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
)

// readAhead is how much is read at once: most frames fit, and larger bodies are read
// straight into their own buffer.
const readAhead = 32 << 10

// keepBody is the largest body buffer that a connection keeps between frames.
const keepBody = 1 << 20

// Frame is one received frame. Body is valid until the next read on its connection. The
// receiver closes Files.
type Frame struct {
	Header
	Body  []byte
	Files []*os.File
}

// CloseFiles closes the descriptors that came with the frame.
func (f *Frame) CloseFiles() { closeFiles(f.Files) }

// Conn sends and receives frames over a Unix stream socket. One goroutine may read
// while another writes; neither side may be shared.
type Conn struct {
	c   *net.UnixConn
	rx  *receiver
	in  []byte // received and not yet parsed, a window of buf
	buf []byte
	// files are received descriptors whose frame is not complete yet, in order.
	files []*os.File
	body  []byte
	out   []byte
	// limit bounds the bodies that are received.
	limit int
}

// NewConn wraps a connected socket, which the Conn owns from now on.
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{c: c, rx: newReceiver(c), buf: make([]byte, readAhead), limit: MaxBodyBytes}
}

// LimitBodies bounds the bodies that are received from now on, to MaxBodyBytes at most.
func (c *Conn) LimitBodies(n int) { c.limit = min(n, MaxBodyBytes) }

// Close closes the socket and every descriptor that was not taken.
func (c *Conn) Close() error {
	closeFiles(c.files)
	c.files = nil
	return c.c.Close()
}

// PeerClosed reports, without waiting, that the other side has closed and nothing that it
// sent before is left to read.
func (c *Conn) PeerClosed() bool { return len(c.in) == 0 && c.rx.peekEOF() }

// WatchClose calls closed, from another goroutine, if the other side closes before stop is called,
// whatever it has sent until then. Nothing may be read meanwhile. stop waits for the end of the watch,
// and lifts the deadline of reads.
func (c *Conn) WatchClose(closed func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.rx.awaitHangUp() {
			closed()
		}
	}()
	return func() {
		_ = c.c.SetReadDeadline(time.Now()) // it has passed: wakes the watch
		<-done
		_ = c.c.SetReadDeadline(time.Time{})
	}
}

// AwaitEOF reads and discards until the other side has closed, or until the deadline,
// which is reported as an error.
func (c *Conn) AwaitEOF(deadline time.Time) error {
	if err := c.c.SetReadDeadline(deadline); err != nil {
		return err
	}
	for {
		n, err := c.receive(c.buf)
		closeFiles(c.files)
		c.files = c.files[:0]
		if n == 0 && (errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET)) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// SetDeadline bounds reads and writes.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetReadDeadline bounds reads.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Begin returns the connection's own buffer with room for a header: the caller appends a
// body to it and gives it to [Conn.Send], before anything else is written.
func (c *Conn) Begin() []byte {
	var zero [HeaderBytes]byte
	return append(c.out[:0], zero[:]...)
}

// Send sends one frame: h (Length and FDs are filled in), the body that was appended to
// what [Conn.Begin] returned, and files.
func (c *Conn) Send(h Header, frame []byte, files ...*os.File) error {
	c.out = frame
	if cap(frame) > keepBody {
		c.out = nil
	}
	if len(frame)-HeaderBytes > MaxBodyBytes || len(files) > MaxFDs {
		return fmt.Errorf("send %s: %w", h.Op, ErrTooLarge)
	}
	h.Length, h.FDs = uint32(len(frame)-HeaderBytes), uint8(len(files))
	h.put(frame)
	if err := c.send(frame, files); err != nil {
		return fmt.Errorf("send %s: %w", h.Op, err)
	}
	return nil
}

// Write sends one frame, as [Conn.Begin] and [Conn.Send] do: body appends the body.
func (c *Conn) Write(h Header, body func([]byte) []byte, files ...*os.File) error {
	return c.Send(h, body(c.Begin()), files...)
}

func (c *Conn) send(b []byte, files []*os.File) error {
	if len(files) == 0 {
		_, err := c.c.Write(b)
		return err
	}
	fds := make([]int, len(files))
	for i, f := range files {
		fds[i] = int(f.Fd())
	}
	// The descriptors go with the header alone, so that a short send cannot part them.
	if _, _, err := c.c.WriteMsgUnix(b[:HeaderBytes], unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	_, err := c.c.Write(b[HeaderBytes:])
	return err
}

// Read receives the next frame. It returns io.EOF where the other side has closed
// between frames; errors that wrap [connector.ErrProtocol] mean that it broke the
// protocol.
func (c *Conn) Read() (Frame, error) {
	var f Frame
	if err := c.fill(HeaderBytes); err != nil {
		return f, err
	}
	h, err := ParseHeader(c.in)
	if err != nil {
		return f, err
	}
	f.Header = h
	if int(h.Length) > c.limit {
		return f, fmt.Errorf("%w: %s frame of %d bytes, at most %d here", connector.ErrProtocol, h.Op, h.Length, c.limit)
	}
	c.in = c.in[HeaderBytes:]
	if f.Body, err = c.readBody(int(h.Length)); err != nil {
		return f, err
	}
	if int(h.FDs) > len(c.files) || (len(c.in) == 0 && int(h.FDs) < len(c.files)) {
		return f, fmt.Errorf("%w: %s frame announces %d descriptors, %d came", connector.ErrProtocol, h.Op, h.FDs, len(c.files))
	}
	if h.FDs > 0 {
		f.Files = append([]*os.File(nil), c.files[:h.FDs]...)
		c.files = append(c.files[:0], c.files[h.FDs:]...)
	}
	return f, nil
}

// readBody returns the next n bytes: a view of the read-ahead where they fit there,
// otherwise a buffer of their own.
func (c *Conn) readBody(n int) ([]byte, error) {
	if n <= readAhead-HeaderBytes {
		if err := c.fill(n); err != nil {
			return nil, noEOF(err)
		}
		b := c.in[:n:n]
		c.in = c.in[n:]
		return b, nil
	}
	if cap(c.body) < n || cap(c.body) > keepBody {
		c.body = make([]byte, n)
	}
	b := c.body[:n]
	have := copy(b, c.in)
	c.in = c.in[have:]
	for have < n {
		got, err := c.receive(b[have:])
		if err != nil {
			return nil, noEOF(err)
		}
		have += got
	}
	return b, nil
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fill makes sure that n bytes are in the read-ahead.
func (c *Conn) fill(n int) error {
	if len(c.in) >= n {
		return nil
	}
	have := copy(c.buf, c.in)
	for have < n {
		got, err := c.receive(c.buf[have:])
		if err != nil {
			c.in = c.buf[:have]
			if have > 0 {
				return noEOF(err)
			}
			return err
		}
		have += got
	}
	c.in = c.buf[:have]
	return nil
}

// receive reads once, and keeps the descriptors that came along.
func (c *Conn) receive(b []byte) (int, error) {
	n, oob, flags, err := c.rx.receive(b)
	if len(oob) > 0 {
		if err := c.keepFiles(oob); err != nil {
			return 0, err
		}
	}
	switch {
	case err != nil:
		return 0, err
	case flags&unix.MSG_CTRUNC != 0:
		return 0, fmt.Errorf("%w: more than %d descriptors at once, or this process can take no more", connector.ErrProtocol, MaxFDs)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (c *Conn) keepFiles(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %v", connector.ErrProtocol, err)
	}
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials and the like
		}
		for _, fd := range fds {
			c.files = append(c.files, os.NewFile(uintptr(fd), "received"))
		}
	}
	if len(c.files) > MaxFDs {
		return fmt.Errorf("%w: more than %d descriptors waiting", connector.ErrProtocol, MaxFDs)
	}
	return nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// receiver reads bytes and descriptors from a socket. The net package's own way returns
// the sender's address with every read, two allocations a frame, hence this one.
type receiver struct {
	raw syscall.RawConn
	oob []byte
	msg unix.Msghdr
	iov unix.Iovec
	// try is receiveOnce as a value, made once.
	try   func(fd uintptr) bool
	n     int
	errno syscall.Errno
}

func newReceiver(c *net.UnixConn) *receiver {
	raw, err := c.SyscallConn()
	if err != nil {
		panic(fmt.Sprintf("wire: connection without a socket: %v", err))
	}
	r := &receiver{raw: raw, oob: make([]byte, unix.CmsgSpace(4*MaxFDs))}
	r.try = r.receiveOnce
	return r
}

// receive reads once into b, which is not empty, waiting until the deadline. It returns
// no bytes at the end of the stream. oob is valid until the next call.
func (r *receiver) receive(b []byte) (n int, oob []byte, flags int32, err error) {
	r.iov.Base = &b[0]
	r.iov.SetLen(len(b))
	r.msg = unix.Msghdr{Iov: &r.iov, Iovlen: 1, Control: &r.oob[0]}
	r.msg.SetControllen(len(r.oob))
	err = r.raw.Read(r.try)
	r.iov.Base = nil
	switch {
	case err != nil:
		return 0, nil, 0, err
	case r.errno != 0:
		return 0, nil, 0, os.NewSyscallError("recvmsg", r.errno)
	}
	return r.n, r.oob[:r.msg.Controllen], r.msg.Flags, nil
}

// receiveOnce reads without waiting, and reports whether there was something. It neither
// spins nor waits in poll(2): both make a round trip faster on an idle machine, and twice
// as slow where both processes and others share two cores (measured).
func (r *receiver) receiveOnce(fd uintptr) bool {
	for {
		n, _, errno := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)), unix.MSG_CMSG_CLOEXEC)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		r.n, r.errno = int(n), errno
		return true
	}
}

// peekEOF reports, without waiting, that nothing is left to read and never will be.
func (r *receiver) peekEOF() bool {
	eof := false
	err := r.raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		eof = (n == 0 && err == nil) || errors.Is(err, unix.ECONNRESET)
	})
	return eof || err != nil
}

// awaitHangUp waits until the other side has closed, or until the deadline, and reports whether it has. What is
// left to read is not looked at: the other side may have sent it before.
func (r *receiver) awaitHangUp() bool {
	hungUp := false
	err := r.raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		hungUp = err == nil && n > 0
		return hungUp
	})
	return err == nil && hungUp
}
