package wire

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
