package server

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// admission decides who may connect, and knows who is connected. No process and no engine
// can take all connections.
type admission struct {
	opts        *Options
	access      access
	maxGreeting int

	mu    sync.Mutex
	conns map[*wire.Conn]*member
	// greeting counts the connections that have not said hello, processes and engines those
	// of each.
	greeting  int
	processes map[int]int
	engines   map[string]int
}

// member is a connection that was let in.
type member struct {
	pid int
	// engine is set by hello.
	engine  string
	greeted bool
}

func newAdmission(o *Options) *admission {
	granted, err := o.Access.resolve()
	if err != nil { // it was valid: a group has gone since
		o.Logger.Warn("the socket's group cannot be found: its members cannot connect", "err", err, "remedy", "set socket_group to a group that exists")
	}
	return &admission{
		opts: o, access: granted,
		// A hello takes a moment: most of the places stay free for connections that have said it.
		maxGreeting: max(1, o.MaxConns/4),
		conns:       make(map[*wire.Conn]*member), processes: make(map[int]int), engines: make(map[string]int),
	}
}

// admit lets a connection in, or says why not. The caller calls leave at its end.
func (a *admission) admit(c *net.UnixConn) (conn *wire.Conn, pid int, err error) {
	cred, err := peerCredentials(c)
	if err != nil {
		return nil, 0, err
	}
	pid = int(cred.Pid)
	if cred.Uid != 0 && int(cred.Uid) != a.opts.UID {
		if ok, err := a.access.allows(c, cred); !ok {
			return nil, pid, errors.Join(a.stranger(cred), err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case len(a.conns) >= a.opts.MaxConns:
		return nil, pid, fmt.Errorf("%d connections are open, the most allowed", len(a.conns))
	case a.greeting >= a.maxGreeting:
		return nil, pid, fmt.Errorf("%d connections have not said hello, the most allowed at one time", a.greeting)
	// The process number is 0 where the peer lives in a PID namespace that the daemon
	// cannot see into: those are bounded by what their engines may have.
	case pid != 0 && a.processes[pid] >= a.opts.MaxProcessConns:
		return nil, pid, fmt.Errorf("process %d has %d connections open, the most that one may have", pid, a.processes[pid])
	}
	conn = wire.NewConn(c)
	a.conns[conn] = &member{pid: pid}
	a.processes[pid]++
	a.greeting++
	return conn, pid, nil
}

// stranger says who may not connect, and who may.
func (a *admission) stranger(peer *unix.Ucred) error {
	text := fmt.Sprintf("process %d runs as user %d and group %d; allowed are root and user %d", peer.Pid, peer.Uid, peer.Gid, a.opts.UID)
	if len(a.access.uids) > 0 {
		text += fmt.Sprintf(", users %d", a.access.uids)
	}
	if len(a.access.gids) > 0 {
		text += fmt.Sprintf(", groups %d", a.access.gids)
	}
	return errors.New(text)
}

// Connections of one engine: its ranks and its scheduler, for eight instances with one id,
// twice, since the connections before a reconnect may not have ended yet, and some more; but
// no more than half of all.
const (
	engineConnsPerSession = 16
	engineConnsMore       = 16
	engineConnsPart       = 2
)

// engineConns is how many connections an engine of that many ranks may have, of maxConns.
func engineConns(ranks, maxConns int) int {
	return min(engineConnsPerSession*(ranks+1)+engineConnsMore, max(engineConnsMore, maxConns/engineConnsPart))
}

// greet notes whose connection it is, unless the engine has too many.
func (a *admission) greet(conn *wire.Conn, engine string, ranks int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.engines[engine] >= engineConns(ranks, a.opts.MaxConns) {
		return fmt.Errorf("%w: engine %q has %d connections open, the most that one of %d ranks may have",
			connector.ErrBadRequest, engine, a.engines[engine], ranks)
	}
	m := a.conns[conn]
	m.engine, m.greeted = engine, true
	a.greeting--
	a.engines[engine]++
	return nil
}

// leave notes that a connection has ended.
func (a *admission) leave(conn *wire.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.conns[conn]
	delete(a.conns, conn)
	lower(a.processes, m.pid)
	if m.greeted {
		lower(a.engines, m.engine)
	} else {
		a.greeting--
	}
}

// lower takes one off a count.
func lower[K comparable](counts map[K]int, k K) {
	if counts[k]--; counts[k] == 0 {
		delete(counts, k)
	}
}

func (a *admission) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.conns)
}
