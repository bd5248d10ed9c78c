package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
)

// A stop may take longer than the watchdog's interval; ended by the watchdog it would leave
// no snapshot.
func TestWatchdogHearsOfADaemonThatStops(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	if err := m.SetReadDeadline(time.Now().Add(testWait)); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "2000"}
	o := Options{StopTimeout: testWait}
	if o.Notify, err = sdnotify.FromEnvironment(func(k string) string { return env[k] }, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = o.Notify.Close() }()
	o.EnsureDefaults()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := within(ctx, &o, func() error { // a store that takes its time to close
		b := make([]byte, 4096)
		for {
			n, err := m.Read(b)
			if err != nil || strings.Contains(string(b[:n]), sdnotify.Watchdog) {
				return err
			}
		}
	}); err != nil {
		t.Errorf("the watchdog hears nothing: %v", err)
	}
}

// A stop while the store is being opened is one in order, however quickly the opening ends.
func TestAStopWhileTheStoreIsBeingOpenedIsNoError(t *testing.T) {
	for range 200 { // which of the two is seen first is a matter of luck
		ctx, stop := context.WithCancel(t.Context())
		o := Options{StopTimeout: testWait}
		o.EnsureDefaults()
		if err := within(ctx, &o, func() error {
			stop()
			return fmt.Errorf("open the store: %w", ctx.Err())
		}); err != nil {
			t.Fatal(err)
		}
	}
}
