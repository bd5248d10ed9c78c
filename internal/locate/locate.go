// Package locate finds the daemon of this node: where engines and people reach it.
package locate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
)

// Settings are those of the daemon that say where it is. What is empty is not set.
type Settings struct {
	// Socket, HTTP and Dir are those of config.Serve.
	Socket, HTTP, Dir string
	// Token is its http_token.
	Token string
}

// SocketPath returns the absolute path of the daemon's socket: as set, else as the daemon that serves the directory says,
// else the default. An engine has a working directory of its own.
func (s Settings) SocketPath() (string, error) {
	socket := s.Socket
	if socket == "" && s.Dir != "" {
		if info, err := daemon.ReadInfo(s.Dir); err == nil {
			socket = info.Socket
		}
	}
	path, err := filepath.Abs(cmp.Or(socket, config.DefaultSocket()))
	if err != nil {
		return "", fmt.Errorf("socket path: %w", err)
	}
	return path, nil
}

// dialTimeout bounds a look at a socket: a daemon's backlog is full for moments only.
const dialTimeout = time.Second

// Listens returns an error that says why nobody can be reached at a socket.
func Listens(ctx context.Context, path string) error {
	dialer := net.Dialer{Timeout: dialTimeout}
	c, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	return c.Close()
}

// Status asks the daemon for its status: the one that serves the directory, else the one at the HTTP address, else the one
// at the default address. A daemon that was restarted on a free port is found again by its directory.
func (s Settings) Status(ctx context.Context) (*daemon.Status, error) {
	_, status, err := s.Daemon(ctx)
	return status, err
}

// Daemon is [Settings.Status], with the HTTP address that answered.
func (s Settings) Daemon(ctx context.Context) (address string, status *daemon.Status, err error) {
	address = cmp.Or(s.address(), config.DefaultHTTP)
	if s.Dir == "" {
		status, err = s.ask(ctx, address)
		return address, status, err
	}
	info, err := daemon.ReadInfo(s.Dir)
	switch {
	case errors.Is(err, fs.ErrPermission): // the directory is the daemon's alone
		status, err = s.ask(ctx, address)
		return address, status, err
	case err != nil:
		return "", nil, err
	case info.HTTP == "":
		return "", nil, fmt.Errorf("the daemon that serves %s has no HTTP interface (http: off)", s.Dir)
	}
	status, err = s.ask(ctx, info.HTTP)
	if err == nil && status.Epoch != info.Epoch { // the address has another daemon now
		return "", nil, fmt.Errorf("no daemon serves %s: the one with process %d was killed", s.Dir, info.PID)
	}
	return info.HTTP, status, err
}

// RouterError means that a router answers where a daemon was expected.
type RouterError struct {
	// Address is the one that was asked.
	Address string
	cause   error
}

// Error implements error.
func (e *RouterError) Error() string { return e.cause.Error() }

// Unwrap returns what the daemon's client said.
func (e *RouterError) Unwrap() error { return e.cause }

// ask has the answer of one address.
func (s Settings) ask(ctx context.Context, address string) (*daemon.Status, error) {
	status, err := daemon.FetchStatusAs(ctx, address, s.Token)
	if errors.Is(err, daemon.ErrRouter) {
		err = &RouterError{address, err}
	}
	return status, err
}

// address is the HTTP address, "" if nothing can be asked there: the setting may be off, or port 0 for any.
func (s Settings) address() string {
	if s.HTTP == "off" || strings.HasSuffix(s.HTTP, ":0") {
		return ""
	}
	return s.HTTP
}
