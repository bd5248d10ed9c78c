package wire

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Duplicate returns a duplicate of the socket, which is the caller's. The other side sees the end of the connection
// once all duplicates are closed, or after [Conn.Shutdown].
func (c *Conn) Duplicate() (*os.File, error) {
	n := -1
	err := c.control(func(fd int) (err error) {
		n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("duplicate a connection: %w", err)
	}
	return os.NewFile(uintptr(n), "connection"), nil
}

// Shutdown ends the connection for both sides, whoever has duplicates of its socket. What was sent before arrives.
func (c *Conn) Shutdown() error {
	if err := c.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) }); err != nil {
		return fmt.Errorf("shut a connection down: %w", err)
	}
	return nil
}

// control calls f with the socket's descriptor, which stays open meanwhile.
func (c *Conn) control(f func(fd int) error) error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	if ctlErr := raw.Control(func(fd uintptr) { err = f(int(fd)) }); ctlErr != nil {
		return ctlErr
	}
	return err
}
