package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"
)

// AcceptSub waits for a publisher to connect to l and subscribes like [DialSub]. It is for engines that connect
// to the router's endpoint instead of binding one. Peers that are no publishers are turned away.
func AcceptSub(ctx context.Context, l net.Listener, topic string, o ConnOptions) (*Conn, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	deadline, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), errors.ErrUnsupported)
	}
	if err := deadline.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), err)
	}
	stop := context.AfterFunc(ctx, func() { _ = deadline.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	nc, err := l.Accept()
	if err != nil {
		return nil, fmt.Errorf("wait for a publisher on %v: %w", l.Addr(), err)
	}
	shake, cancel := context.WithTimeout(ctx, o.HandshakeTimeout)
	defer cancel()
	c, err := handshake(shake, nc, typeSub, []string{typePub, typeXPub}, o)
	if err == nil {
		if err = c.subscribe(topic); err != nil {
			_ = c.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("publisher at %v: %w", nc.RemoteAddr(), err)
	}
	return c, nil
}
