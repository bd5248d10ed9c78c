package objectbench

import (
	"context"
	"net"

	"golang.org/x/time/rate"
)

// linkChunkBytes are moved at one time through a link.
const linkChunkBytes = 256 << 10

// link is a listener whose connections share a bandwidth in each direction, as those of a server with one
// network interface do.
type link struct {
	net.Listener
	in, out *rate.Limiter
}

// newLink limits the connections of a listener to bytes a second in each direction; 0 is no limit.
func newLink(l net.Listener, bytesPerS int64) net.Listener {
	if bytesPerS == 0 {
		return l
	}
	// Timers are late by a millisecond or so. What a pause of 5 ms holds up may be made good after it.
	burst := int(max(bytesPerS/200, linkChunkBytes))
	limiter := func() *rate.Limiter { return rate.NewLimiter(rate.Limit(bytesPerS), burst) }
	return &link{Listener: l, in: limiter(), out: limiter()}
}

// Accept implements [net.Listener].
func (l *link) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &linkedConn{Conn: c, link: l}, nil
}

// linkedConn is a connection of a link.
type linkedConn struct {
	net.Conn
	link *link
}

// Read implements [net.Conn].
func (c *linkedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), linkChunkBytes)])
	if wait := c.link.in.WaitN(context.Background(), n); wait != nil && err == nil {
		err = wait
	}
	return n, err
}

// Write implements [net.Conn].
func (c *linkedConn) Write(b []byte) (sent int, err error) {
	for sent < len(b) && err == nil {
		part := b[sent:min(sent+linkChunkBytes, len(b))]
		if err = c.link.out.WaitN(context.Background(), len(part)); err != nil {
			break
		}
		var n int
		n, err = c.Conn.Write(part)
		sent += n
	}
	return sent, err
}
