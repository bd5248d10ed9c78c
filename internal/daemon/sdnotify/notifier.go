// Package sdnotify tells the service manager how a daemon does, in the protocol of
// systemd's sd_notify(3): datagrams of assignments to the socket named by NOTIFY_SOCKET.
package sdnotify

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// The assignments that are sent; see sd_notify(3).
const (
	// Ready says that the service is up, Stopping that it is going down, Watchdog that it
	// is alive.
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Watchdog = "WATCHDOG=1"
)

// Status is the assignment of one line for people.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// ExtendTimeout asks the manager to wait for d from now before it gives up on a start or stop.
func ExtendTimeout(d time.Duration) string {
	return "EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(d.Microseconds(), 10)
}

// writeTimeout bounds a datagram: a manager that does not read must not hold up the
// daemon.
const writeTimeout = time.Second

// Notifier sends to one socket. A nil Notifier sends nothing: no manager has asked. It is
// safe for concurrent use.
type Notifier struct {
	conn     *net.UnixConn
	watchdog time.Duration
	failing  atomic.Bool
}

// FromEnvironment returns a notifier for the manager that started process pid, nil if
// there is none. getenv is [os.Getenv].
func FromEnvironment(getenv func(string) string, pid int) (*Notifier, error) {
	socket := getenv("NOTIFY_SOCKET")
	if socket == "" {
		return nil, nil
	}
	// "@" stands for the zero byte of an abstract socket; net does the same.
	if socket[0] != '/' && socket[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET is %q: want an absolute path or @NAME", socket)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("connect to NOTIFY_SOCKET: %w", err)
	}
	watchdog, err := watchdogInterval(getenv, pid)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Notifier{conn: conn, watchdog: watchdog}, nil
}

// watchdogInterval reads WATCHDOG_USEC, 0 if no watchdog waits for this process
// (sd_watchdog_enabled(3)).
func watchdogInterval(getenv func(string) string, pid int) (time.Duration, error) {
	usec := getenv("WATCHDOG_USEC")
	if usec == "" {
		return 0, nil
	}
	if p := getenv("WATCHDOG_PID"); p != "" && p != strconv.Itoa(pid) {
		return 0, nil
	}
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
		return 0, fmt.Errorf("WATCHDOG_USEC is %q: want microseconds, a day at most", usec)
	}
	return time.Duration(n) * time.Microsecond, nil
}

// Send sends assignments in one datagram. Of several failures in a row it returns the first
// only: that the manager has gone needs to be said once.
func (n *Notifier) Send(assignments ...string) error {
	if n == nil {
		return nil
	}
	err := n.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if err == nil {
		_, err = n.conn.Write([]byte(strings.Join(assignments, "\n")))
	}
	if before := n.failing.Swap(err != nil); err != nil && !before {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// WatchdogInterval is the time without a [Watchdog] message after which the manager takes the
// process for hung; 0 if it does not watch.
func (n *Notifier) WatchdogInterval() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog
}

// Close closes the socket.
func (n *Notifier) Close() error {
	if n == nil {
		return nil
	}
	return n.conn.Close()
}
