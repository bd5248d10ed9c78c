package server

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse means that another daemon serves the socket.
var ErrSocketInUse = errors.New("socket is in use by a running daemon")

// maxSocketPath is sun_path less the byte that ends it (unix(7)).
const maxSocketPath = 107

// Listener is the daemon's socket. Its owner holds the lock beside it: if several daemons
// start on one path at the same time, one serves and the others get an error.
type Listener struct {
	*net.UnixListener
	path string
	// fresh is the socket's name until it is published, then empty.
	fresh string
	// own is the socket's file, lock the locked file beside it.
	own  os.FileInfo
	lock *os.File
	once sync.Once
	err  error
}

// Listen is [Reserve] for the daemon's own user and [Listener.Publish] in one.
func Listen(ctx context.Context, path string) (*Listener, error) {
	l, err := Reserve(ctx, path, Access{})
	if err != nil {
		return nil, err
	}
	if err := l.Publish(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Reserve makes the socket of path, with the mode and group of a, under another name: the daemon
// knows that it can have the path before it does anything else, and nobody connects yet. It fails
// with [ErrSocketInUse] where a daemon answers at the path or holds its lock.
func Reserve(ctx context.Context, path string, a Access) (_ *Listener, err error) {
	granted, err := a.resolve()
	if err != nil {
		return nil, err
	}
	if len(path)+freshSuffix > maxSocketPath {
		return nil, fmt.Errorf("socket path %q has %d bytes; the system allows %d", path, len(path), maxSocketPath-freshSuffix)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	l := &Listener{path: path}
	if l.lock, err = lockSocket(path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = unlock(l.lock)
		}
	}()
	// A daemon of a version without the lock, or whose lock file was removed, answers.
	if err := checkStale(ctx, path); err != nil {
		return nil, err
	}
	removeReserved(ctx, path)
	if l.fresh, err = l.bind(); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err = granted.apply(l.fresh); err == nil {
		l.own, err = os.Lstat(l.fresh)
	}
	if err != nil {
		_ = l.UnixListener.Close()
		_ = os.Remove(l.fresh)
		return nil, fmt.Errorf("make socket %s: %w", path, err)
	}
	return l, nil
}

// Publish gives the socket its path, and replaces what a dead daemon left there: the socket
// being there means that the daemon is ready.
func (l *Listener) Publish(ctx context.Context) error {
	err := checkStale(ctx, l.path)
	if err == nil {
		err = os.Rename(l.fresh, l.path)
	}
	if err != nil {
		return fmt.Errorf("publish socket %s: %w", l.path, err)
	}
	l.fresh = ""
	return nil
}

// Close ends the socket, removes its file unless another has taken its place, and lets
// go of the lock, in this order.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.err = l.UnixListener.Close()
		if l.fresh != "" {
			l.err = errors.Join(l.err, os.Remove(l.fresh))
		} else if now, err := os.Lstat(l.path); err == nil && os.SameFile(l.own, now) {
			_ = os.Remove(l.path)
		}
		l.err = errors.Join(l.err, unlock(l.lock))
	})
	return l.err
}

// freshSuffix is how much longer than the path the name is under which a socket is made.
const freshSuffix = 4

// freshLetters are what follows the dot in it.
const freshLetters = "0123456789abcdefghijklmnopqrstuvwxyz"

// bind listens under an unused name beside the path.
func (l *Listener) bind() (fresh string, err error) {
	for range 16 { // another has the name, which a daemon that died here has left
		name := [freshSuffix]byte{'.'}
		for i := 1; i < len(name); i++ {
			name[i] = freshLetters[rand.IntN(len(freshLetters))]
		}
		fresh = l.path + string(name[:])
		l.UnixListener, err = net.ListenUnix("unix", &net.UnixAddr{Name: fresh, Net: "unix"})
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return fresh, err
}

// removeReserved removes the sockets that daemons reserved for path and that were killed before
// they had published them. The lock of path is held, so that no daemon is at it now.
func removeReserved(ctx context.Context, path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return // they are in nobody's way
	}
	for _, e := range entries {
		suffix, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+".")
		if !ok || len(suffix) != freshSuffix-1 || strings.Trim(suffix, freshLetters) != "" || !isOurSocket(e) {
			continue
		}
		name := filepath.Join(filepath.Dir(path), e.Name())
		if _, err := os.Lstat(name + ".lock"); err == nil {
			continue // another daemon's own path
		}
		if checkStale(ctx, name) == nil {
			_ = os.Remove(name)
		}
	}
}

func isOurSocket(e os.DirEntry) bool {
	if e.Type()&os.ModeSocket == 0 {
		return false
	}
	info, err := e.Info()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

// lockSocket locks the file beside the socket. The file stays: one that is removed could
// be locked by two.
func lockSocket(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the lock of socket %s: %w", path, err)
		}
		locked, err := tryLock(f)
		if locked {
			return f, nil
		}
		_ = f.Close()
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			return nil, fmt.Errorf("%s: %w", path, ErrSocketInUse)
		case err != nil:
			return nil, fmt.Errorf("lock socket %s: %w", path, err)
		}
	}
}

// tryLock locks f without waiting. It reports false without an error where the file was
// removed or replaced before it was locked.
func tryLock(f *os.File) (bool, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return false, err
	}
	held, err := f.Stat()
	if err != nil {
		return false, err
	}
	now, err := os.Stat(f.Name())
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(held, now), err
}

// unlock closes the locked file f. It ends the lock itself: a process that is being started has a copy
// of the descriptor for a moment, which would keep it.
func unlock(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
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
	case errors.Is(err, unix.EAGAIN): // its backlog is full
		return fmt.Errorf("%s: %w", path, ErrSocketInUse)
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil // nobody listens any more
	}
	return fmt.Errorf("find out whether socket %s is in use: %w", path, err)
}

// acceptor accepts connections. It keeps one descriptor in reserve: when the process or the
// system has run out of them, it uses that to close waiting connections at once, and their
// clients try again later.
type acceptor struct {
	l       *Listener
	reserve *os.File // nil where there was none left
	opts    *Options
	// starved is set while connections cannot be accepted.
	starved bool
	refused func()
}

// acceptPause is the time between attempts to accept while the system refuses.
const acceptPause = 100 * time.Millisecond

// shedWait bounds the wait for a connection to turn away: it may be gone already.
const shedWait = 10 * time.Millisecond

// shedTime bounds the time for which connections are turned away before the next attempt to
// accept: while clients connect again as soon as they are turned away, one always waits.
const shedTime = 100 * time.Millisecond

// next returns the next connection, or an error once the listener is closed or ctx ends.
func (a *acceptor) next(ctx context.Context) (*net.UnixConn, error) {
	for {
		a.refill()
		c, err := a.l.AcceptUnix()
		switch {
		case err == nil:
			if a.starved {
				a.starved = false
				a.opts.Logger.Info("engines can connect again")
			}
			return c, nil
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return nil, fmt.Errorf("accept on the engine socket: %w", err)
		case errors.Is(err, unix.ECONNABORTED):
			continue // the peer has gone
		}
		if !a.starved {
			a.starved = true
			a.opts.Logger.Error("cannot accept engines' connections; engines that are connected go on, others are turned away until it passes", "err", err,
				"remedy", "raise the daemon's limit of open files (LimitNOFILE, ulimit -n)")
		}
		if outOfDescriptors(err) {
			a.shed()
		}
		select {
		case <-ctx.Done():
		case <-time.After(acceptPause):
		}
	}
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)
}

// refill takes a descriptor into reserve, if there is none.
func (a *acceptor) refill() {
	if a.reserve == nil {
		if f, err := os.Open(os.DevNull); err == nil {
			a.reserve = f
		}
	}
}

// shed closes the connections that wait to be accepted, with the reserve.
func (a *acceptor) shed() {
	for end := time.Now().Add(shedTime); a.reserve != nil && time.Now().Before(end); {
		_ = a.reserve.Close()
		a.reserve = nil
		err := a.l.SetDeadline(time.Now().Add(shedWait))
		if err == nil {
			var c *net.UnixConn
			if c, err = a.l.AcceptUnix(); err == nil {
				a.refused()
				_ = c.Close()
			}
			_ = a.l.SetDeadline(time.Time{})
		}
		a.refill()
		if err != nil {
			return
		}
	}
}

func (a *acceptor) close() {
	if a.reserve != nil {
		_ = a.reserve.Close()
	}
}
