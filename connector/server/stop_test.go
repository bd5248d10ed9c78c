package server

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/connector/wire"
)

// slowToCancel has connections whose contexts take long to end, so that those of others end later than the server's.
type slowToCancel struct {
	keyedBackend
	mu      sync.Mutex
	cancels []context.CancelFunc
}

func (b *slowToCancel) OpenWorker(ctx context.Context, p Peer, m *connector.Manifest, rank int) (Worker, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range 5000 {
		_, cancel := context.WithCancel(ctx)
		b.cancels = append(b.cancels, cancel)
	}
	return b.keyedBackend.OpenWorker(ctx, p, m, rank)
}

// A call that ends while the server stops lifts the deadline that wakes its connection. The connection ends all the same,
// though its client says nothing more.
func TestServerStopsBesideCallsThatEnd(t *testing.T) {
	for range 10 {
		b := &slowToCancel{keyedBackend: keyedBackend{echo: echo{closed: make(chan struct{}, 256)}, began: make(chan struct{}, 64)}}
		s, socket, stop := startToStop(t, Options{LoadTimeout: time.Hour}, b)
		for n := range 8 {
			_, conn := dial(t, socket)
			greet(t, conn, keyedHello())
			send(t, conn, wire.OpFetch, moveOf(time.Duration(10+n)*time.Millisecond))
			<-b.began
		}
		time.Sleep(8 * time.Millisecond)
		stopped := make(chan struct{})
		go func() {
			stop()
			close(stopped)
		}()
		select {
		case <-stopped:
		case <-time.After(time.Minute):
			t.Fatalf("%d connections stay open", s.admission.len())
		}
	}
}

// A server whose socket is closed under it ends its connections, and says so.
func TestServerThatCannotListenEndsItsConnections(t *testing.T) {
	dir, err := os.MkdirTemp("", "kvconn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := Listen(t.Context(), filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	s := New(Options{Epoch: 7, UID: os.Getuid()}, newEcho())
	go func() { served <- s.Serve(context.Background(), l) }()
	_, conn := dial(t, filepath.Join(dir, "s"))
	greet(t, conn, hello(t))
	_ = l.Close()
	select {
	case err := <-served:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%v", err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%d connections stay open", s.admission.len())
	}
	wantClosed(t, conn)
}
