package wire

import (
	"errors"
	"io"
	"sync/atomic"
	"testing"

	"github.com/kvconn/kvconn/connector"
)

// A watch that nobody closed under leaves the connection as it was: frames that came meanwhile are read afterwards,
// also those whose first bytes had been read before.
func TestWatchesLoseNoFrames(t *testing.T) {
	c, peer := pair(t)
	other := NewConn(peer)
	if err := errors.Join(other.Write(Header{ID: 1, Op: OpPoll}, body([]byte("one"))), other.Write(Header{ID: 2, Op: OpPoll}, body([]byte("two")))); err != nil {
		t.Fatal(err)
	}
	var closed atomic.Bool
	for id := range uint32(200) {
		f, err := c.Read()
		if err != nil || f.ID != id+1 {
			t.Fatalf("%+v, %v, want frame %d", f.Header, err, id+1)
		}
		stop := c.WatchClose(func() { closed.Store(true) })
		if err := other.Write(Header{ID: id + 3, Op: OpPoll}, body(make([]byte, 100*id))); err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if closed.Load() {
		t.Error("the watch saw the end of a connection that is open")
	}
}

// A watch sees the end, whenever it comes and whatever is left to read, once; and that is read afterwards.
func TestWatchesSeeTheEnd(t *testing.T) {
	for name, end := range map[string]func(half func() error, watch func() (stop func())) (stop func(), err error){
		"before": func(half func() error, watch func() func()) (func(), error) {
			err := half()
			return watch(), err
		},
		"during": func(half func() error, watch func() func()) (func(), error) {
			stop := watch()
			return stop, half()
		},
		"in a second watch": func(half func() error, watch func() func()) (func(), error) {
			watch()()
			stop := watch()
			return stop, half()
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, peer := pair(t)
			other := NewConn(peer)
			for id := range uint32(3) {
				if err := other.Write(Header{ID: id, Op: OpPoll}, body([]byte("left"))); err != nil {
					t.Fatal(err)
				}
			}
			seen := make(chan struct{}, 8)
			stop, err := end(peer.CloseWrite, func() func() { return c.WatchClose(func() { seen <- struct{}{} }) })
			if err != nil {
				t.Fatal(err)
			}
			<-seen
			stop()
			for id := range uint32(3) {
				if f, err := c.Read(); err != nil || f.ID != id || string(f.Body) != "left" {
					t.Errorf("%+v, %v", f.Header, err)
				}
			}
			if _, err := c.Read(); !errors.Is(err, io.EOF) || errors.Is(err, connector.ErrProtocol) {
				t.Errorf("%v at the end", err)
			}
			if len(seen) > 0 {
				t.Error("the end was seen twice")
			}
			if err := c.Write(Header{ID: 9, Op: OpPoll, Kind: KindReply}, AppendEmpty); err != nil {
				t.Errorf("%v: the other side still reads", err)
			}
		})
	}
}
