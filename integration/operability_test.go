package integration

import (
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/store/disk"
)

// What was accepted before the signal is there after it, and the index comes from the
// snapshot.
func TestStopWritesAcceptedSavesAndTheSnapshot(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	ps := prompts(40, 4)
	e := newInstance(t, n, nil)
	want := e.run("first", ps)
	e.close()
	n.stop() // without waiting for the writes
	n.start()
	if s := n.status(); s.Store.Recovered != disk.RecoveredSnapshot || s.Store.Records == 0 {
		t.Errorf("after the stop: %d records from %s", s.Store.Records, s.Store.Recovered)
	}
	again := newInstance(t, n, nil)
	got := again.run("second", ps)
	same(t, "after the stop", got, want)
	for k, r := range got {
		if all := (len(ps[k]) - 1) / 8 * 8; r.CachedTokens+r.LocalCachedTokens < all {
			t.Errorf("prompt %d: %d tokens, want %d: a save was lost", k, r.CachedTokens+r.LocalCachedTokens, all)
		}
	}
}

func TestSecondSignalEndsTheDaemonAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start()
	info, err := daemon.ReadInfo(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	// A connection that says nothing holds the stop up for a while.
	c, err := net.Dial("tcp", info.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	n.status() // connections are accepted in order: the silent one has been, too
	ended := make(chan error, 1)
	go func() { ended <- n.cmd.Wait() }()
	signals := time.NewTicker(10 * time.Millisecond)
	defer signals.Stop()
	for {
		select {
		case err = <-ended:
		case <-signals.C:
			_ = n.cmd.Process.Signal(syscall.SIGTERM)
			continue
		}
		break
	}
	n.cmd = nil
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("the daemon ended with %v, want SIGTERM", err)
	}
	n.start() // nothing is left that would hinder it
	n.stop()
}

func TestServiceManagerHearsFromTheRealDaemon(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	path := filepath.Join(filepath.Dir(n.dir), "n")
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	n.environ = []string{"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=50000"}
	n.start()
	b := make([]byte, 4096)
	for _, want := range []string{"READY=1", "WATCHDOG=1", "STOPPING=1"} {
		if want == "STOPPING=1" {
			if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		for got := ""; !strings.Contains(got, want); {
			if err := m.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
				t.Fatal(err)
			}
			k, err := m.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			got = string(b[:k])
		}
	}
	if err := n.cmd.Wait(); err != nil {
		t.Errorf("stop: %v", err)
	}
	n.cmd = nil
}
