package httplimit

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// guard bounds the connections of a server, in [Shares]. If a client that has its share connects
// again, its own connection that has been idle longest is closed, so that connections left open
// cost nobody an answer; a trusted client may also replace a stranger's. If none is idle, the
// new connection is refused.
type guard struct {
	shares  *Shares
	refused atomic.Uint64

	mu    sync.Mutex
	conns map[*conn]struct{}
	turn  uint64
}

// Stats returns how many connections are open, and how many were refused.
func (g *guard) Stats() (open int, refused uint64) { return g.shares.Taken(), g.refused.Load() }

// moved notes a connection's state; it is the server's ConnState.
func (g *guard) moved(c net.Conn, state http.ConnState) {
	if state == http.StateActive || state == http.StateIdle {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.turn++
		gc := c.(*conn)
		gc.idle, gc.since = state == http.StateIdle, g.turn
	}
}

func withClient(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, clientKey{}, c.(*conn).client)
}

type clientKey struct{}

// ClientOf returns the client that makes a request: exactly if its server is watched, otherwise
// by address.
func ClientOf(r *http.Request) Client {
	if c, ok := r.Context().Value(clientKey{}).(Client); ok {
		return c
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return Client{Name: host}
}

type listener struct {
	net.Listener
	guard *guard
	peers *peers
	// mu keeps Close from closing the descriptor that Accept uses.
	mu sync.Mutex
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		client := l.peers.of(c)
		l.mu.Unlock()
		if admitted := l.guard.admit(c, client); admitted != nil {
			return admitted, nil
		}
		refuse(c)
	}
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.peers.close()
	return err
}

// refusal is the whole answer to a client that is refused.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n" +
	"Retry-After: 1\r\nContent-Length: 21\r\n\r\ntoo many connections\n"

// refuse answers and hangs up. It does not wait: the answer fits into the send buffer of a new
// connection.
func refuse(c net.Conn) {
	_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = c.Write([]byte(refusal)) // it may have hung up
	_ = c.Close()
}

// admit returns the connection for the server, or nil if it is refused.
func (g *guard) admit(c net.Conn, client Client) *conn {
	if !g.shares.Take(client) && !(g.evict(client) && g.shares.Take(client)) {
		g.refused.Add(1)
		return nil
	}
	gc := &conn{Conn: c, guard: g, client: client, idle: true}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.turn++
	gc.since = g.turn
	g.conns[gc] = struct{}{}
	return gc
}

// evict closes the connection that has been idle longest: one of the client's own or, if there is
// none and the client is trusted, a stranger's.
func (g *guard) evict(client Client) bool {
	victim := g.victim(func(c *conn) bool { return c.client == client })
	if victim == nil && client.Trusted {
		victim = g.victim(func(c *conn) bool { return !c.client.Trusted })
	}
	if victim == nil {
		return false
	}
	_ = victim.Close() // the server sees it
	return true
}

func (g *guard) victim(may func(*conn) bool) (found *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.conns {
		if c.idle && may(c) && (found == nil || c.since < found.since) {
			found = c
		}
	}
	return found
}

type conn struct {
	net.Conn
	guard  *guard
	client Client
	once   sync.Once
	// idle is set while there is no request on the connection; since is the guard's count at
	// the last change. The guard's mutex guards both.
	idle  bool
	since uint64
}

// Close implements [net.Conn], and frees the place.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.guard.mu.Lock()
		delete(c.guard.conns, c)
		c.guard.mu.Unlock()
		c.guard.shares.Give(c.client)
	})
	return err
}
