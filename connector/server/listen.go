package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse means that another daemon serves the socket.
var ErrSocketInUse = errors.New("socket is in use by a running daemon")

// maxSocketPath is sun_path less the byte that ends it (unix(7)).
const maxSocketPath = 107

// Listen makes the socket at path with mode 0600. A socket that a dead daemon left
// behind is replaced; one that answers is [ErrSocketInUse]. The socket gets its final
// name only once it has its mode and accepts connections, so that its being there means
// that the daemon is ready.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	if len(path)+len(".new") > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes; the system allows %d", path, len(path), maxSocketPath-len(".new"))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := checkStale(ctx, path); err != nil {
		return nil, err
	}
	fresh := path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(fresh, 0o600)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("publish socket %s: %w", path, err)
	}
	return l, nil
}

// checkStale refuses a path that holds a live socket or no socket at all.
func checkStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at socket %s: %w", path, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is no socket", path)
	}
	dialer := net.Dialer{Timeout: time.Second}
	c, err := dialer.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%s: %w", path, ErrSocketInUse)
	case errors.Is(err, unix.ECONNREFUSED):
		return nil // nobody listens any more
	}
	return fmt.Errorf("find out whether socket %s is in use: %w", path, err)
}

// peerCredentials returns who is at the other end.
func peerCredentials(c *net.UnixConn) (*unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, fmt.Errorf("peer credentials: %w", err)
	}
	if credErr != nil {
		return nil, fmt.Errorf("peer credentials: %w", credErr)
	}
	return cred, nil
}
