package zmtp

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// BenchmarkPubSub sends messages of a batch's size over the loopback and receives them, with our own
// subscriber and with the library's.
func BenchmarkPubSub(b *testing.B) {
	payload := make([]byte, 1890)
	run := func(b *testing.B, p *Publisher, recv func() error) {
		var received atomic.Int64
		done := make(chan error, 1)
		go func() {
			for range b.N {
				if err := recv(); err != nil {
					done <- err
					return
				}
				received.Add(1)
			}
			done <- nil
		}()
		for i := range b.N {
			for int64(i)-received.Load() > 4096 {
				select {
				case err := <-done:
					b.Fatal(err)
				default:
				}
			}
			p.Publish([]byte("kv"), seqFrame(i), payload)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	b.Run("own", func(b *testing.B) {
		p := startPublisher(b)
		c, err := DialSub(context.Background(), endpointOf(p.Addr()), "")
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		wait.For(b, "a subscription", func() bool { return p.subscribed(1) })
		var m Message
		b.ReportAllocs()
		b.ResetTimer()
		run(b, p, func() error { return c.Recv(&m) })
	})
	b.Run("go-zeromq", func(b *testing.B) {
		p := startPublisher(b)
		c := zmq4.NewSub(context.Background())
		defer c.Close()
		if err := c.Dial(endpointOf(p.Addr())); err != nil {
			b.Fatal(err)
		}
		if err := c.SetOption(zmq4.OptionSubscribe, ""); err != nil {
			b.Fatal(err)
		}
		wait.For(b, "a subscription", func() bool { return p.subscribed(1) })
		b.ReportAllocs()
		b.ResetTimer()
		run(b, p, func() error { _, err := c.Recv(); return err })
	})
}
