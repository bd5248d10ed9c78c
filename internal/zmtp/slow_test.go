package zmtp

import (
	"log/slog"
	"testing"
	"time"
	"unsafe"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

func TestWhatWaitsForASlowSubscriberIsBoundedInBytes(t *testing.T) {
	s := &subscriber{queue: make(chan []byte, 100)}
	for i, want := range []bool{true, true, false, false} {
		if got := s.push(make([]byte, 400), 1000); got != want {
			t.Errorf("message %d: taken %t", i, got)
		}
	}
	if !s.push(make([]byte, 200), 1000) || s.push(make([]byte, 1), 1000) {
		t.Error("the bound is not 1000 bytes")
	}
}

// A peer costs memory before anything waits for it.
func TestIdleSubscribersTakeLittleMemory(t *testing.T) {
	l := NewPublisher(listen(t), slog.New(slog.DiscardHandler)).limits
	if bytes := l.conns * l.queueMessages * int(unsafe.Sizeof([]byte(nil))); bytes > 64<<20 {
		t.Errorf("%d bytes for the empty queues of %d subscribers", bytes, l.conns)
	}
}

func TestASubscriberThatHasStoppedReadingIsGoneAfterAWhile(t *testing.T) {
	p := startPublisher(t, func(l *serverLimits) { l.conn.write = 20 * time.Millisecond })
	stuck, err := DialSub(t.Context(), endpointOf(p.Addr()), "")
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Close()
	wait.For(t, "a subscription", func() bool { return p.subscribed(1) })
	payload := make([]byte, 1<<20)
	wait.For(t, "that it is gone", func() bool {
		p.Publish([]byte("kv"), seqFrame(0), payload)
		return p.Stats().Subscribers == 0
	})
}
