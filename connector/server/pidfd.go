package server

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// watch calls ended once the process that made the connection has ended, even if a child
// that it forked keeps the socket open. The returned function ends the watch. Where
// the system has no pidfd for the peer (Linux before 5.3, or a peer outside the
// daemon's PID namespace) only the socket's end counts. It is an error to have no
// descriptor left: that passes, and a connection is not to go unwatched for it.
func (s *Server) watch(c *net.UnixConn, pid int, ended func()) (stop func(), err error) {
	f, err := peerProcess(c, pid)
	if outOfDescriptors(err) {
		return nil, err
	}
	if err != nil {
		s.unwatched.Do(func() {
			s.opts.Logger.Debug("engine processes cannot be watched, only their sockets", "err", err)
		})
		return func() {}, nil
	}
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return func() {}, nil
	}
	s.wg.Go(func() {
		defer func() { _ = f.Close() }()
		// Read waits in the runtime's poller, without a thread; closing ends it.
		if err := raw.Read(hasEnded); err == nil {
			ended()
		}
	})
	return func() { _ = f.Close() }, nil
}

func hasEnded(pidfd uintptr) bool {
	p := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p[:], 0)
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// peerCredentials returns who is at the other end.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	cred, err := control(c, func(socket int) (*unix.Ucred, error) {
		return unix.GetsockoptUcred(socket, unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	return cred, nil
}

// control calls f with the socket's descriptor.
func control[T any](c *net.UnixConn, f func(socket int) (T, error)) (v T, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return v, err
	}
	var fErr error
	err = raw.Control(func(fd uintptr) { v, fErr = f(int(fd)) })
	return v, errors.Join(err, fErr)
}

// peerProcess returns a pidfd of the process that made the connection: from the socket
// itself (SO_PEERPIDFD, Linux 6.5), which cannot name another, else by its number.
func peerProcess(c *net.UnixConn, pid int) (*os.File, error) {
	fd, err := control(c, func(socket int) (int, error) {
		return unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	})
	if err != nil && pid > 0 {
		fd, err = unix.PidfdOpen(pid, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d of the peer: %w", pid, err)
	}
	unix.CloseOnExec(fd)
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls it
		_ = unix.Close(fd)
		return nil, fmt.Errorf("process of the peer: %w", err)
	}
	return os.NewFile(uintptr(fd), "pidfd"), nil
}
