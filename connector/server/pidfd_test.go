package server

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/testkit/wait"
)

// Where a peer's process cannot be watched that is said once, and only the socket counts.
func TestPeerWithoutPidfdIsServedAndSaidOnce(t *testing.T) {
	var log bytes.Buffer
	s := New(Options{Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}, newEcho())
	_, socket := start(t, Options{}, newEcho())
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close() // has no peer any more
	for range 3 {
		stop, err := s.watch(c, 0, func() { t.Error("a process that is not watched has ended") })
		if err != nil {
			t.Fatal(err)
		}
		stop()
	}
	if n := strings.Count(log.String(), "cannot be watched"); n != 1 {
		t.Errorf("said %d times, want once: %s", n, &log)
	}
}

func TestWatchEndsWithTheConnection(t *testing.T) {
	s, socket := start(t, Options{}, newEcho())
	_, first := dial(t, socket) // it serves, and has its reserve
	greet(t, first, hello(t))
	before := openDescriptors(t)
	for range 20 {
		_, conn := dial(t, socket)
		greet(t, conn, hello(t))
		_ = conn.Close()
	}
	wait.For(t, "connections end", func() bool { return s.Stats().Connections <= 1 })
	// The watchers close theirs after the connections.
	wait.For(t, "all descriptors are closed", func() bool { return openDescriptors(t) <= before })
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
