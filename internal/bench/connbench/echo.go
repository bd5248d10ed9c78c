package connbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// echoBytes is the size of the raw message: what a small call's frame is about.
const echoBytes = 160

// echoSuffix makes the raw socket's path from that of the server's.
const echoSuffix = ".echo"

// serveEcho sends back what the calling process sends, with nothing in between: the limit
// that a call's round trip is compared with.
func serveEcho(ctx context.Context, path string) (stop func() error, err error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for raw round trips: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- nil // stopped before anyone came
			return
		}
		defer func() { _ = c.Close() }()
		_, err = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		ended <- err
	}()
	return func() error { return errors.Join(l.Close(), <-ended) }, nil
}

// timeEcho times raw round trips.
func timeEcho(ctx context.Context, path string, calls int) (p50S float64, err error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return 0, fmt.Errorf("connect for raw round trips: %w", err)
	}
	defer func() { _ = c.Close() }()
	message := make([]byte, echoBytes)
	took := make([]time.Duration, calls)
	for i := -warmUp; i < calls; i++ {
		start := time.Now()
		if _, err := c.Write(message); err != nil {
			return 0, fmt.Errorf("raw round trip: %w", err)
		}
		if _, err := io.ReadFull(c, message); err != nil {
			return 0, fmt.Errorf("raw round trip: %w", err)
		}
		if i >= 0 {
			took[i] = time.Since(start)
		}
	}
	slices.Sort(took)
	return took[len(took)/2].Seconds(), nil
}
