package sdnotify

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

// manager listens as systemd does.
func manager(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestSendReachesPathAndAbstractSockets(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), fmt.Sprintf("@kvconn-test-%d", os.Getpid())} {
		m := manager(t, name)
		n, err := FromEnvironment(env(map[string]string{"NOTIFY_SOCKET": name}), 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Send(Ready, Status("two\nlines")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		got, err := m.Read(b)
		if want := "READY=1\nSTATUS=two lines"; err != nil || string(b[:got]) != want {
			t.Errorf("%s: %q, %v; want %q", name, b[:got], err, want)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAManagerThatHasGoneIsReportedOnce(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	m := manager(t, name)
	n, err := FromEnvironment(env(map[string]string{"NOTIFY_SOCKET": name}), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close() }()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Send(Ready); err == nil {
		t.Error("nobody listens, and no error")
	}
	if err := n.Send(Watchdog); err != nil {
		t.Errorf("reported again: %v", err)
	}
}

func TestWithoutManagerNothingIsSent(t *testing.T) {
	n, err := FromEnvironment(env(nil), 1)
	if err != nil || n != nil {
		t.Fatalf("%v, %v; want no notifier", n, err)
	}
	if err := n.Send(Ready); err != nil || n.WatchdogInterval() != 0 || n.Close() != nil {
		t.Errorf("Send = %v, watchdog %s", err, n.WatchdogInterval())
	}
}

func TestWatchdogIsOfThisProcessOnly(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	manager(t, name)
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       bool
	}{
		{"", "", 0, false}, {"3000000", "", 3 * time.Second, false}, {"3000000", "7", 3 * time.Second, false},
		{"3000000", "8", 0, false}, {"x", "", 0, true}, {"-1", "7", 0, true}, {"99999999999999", "", 0, true},
	} {
		n, err := FromEnvironment(env(map[string]string{"NOTIFY_SOCKET": name, "WATCHDOG_USEC": c.usec, "WATCHDOG_PID": c.pid}), 7)
		if (err != nil) != c.bad || n.WatchdogInterval() != c.want {
			t.Errorf("%+v: %s, %v", c, n.WatchdogInterval(), err)
		}
		_ = n.Close()
	}
}

func TestUselessSocketsAreErrors(t *testing.T) {
	for _, name := range []string{"relative", filepath.Join(t.TempDir(), "nobody"), "vsock:2:9999"} {
		if n, err := FromEnvironment(env(map[string]string{"NOTIFY_SOCKET": name}), 1); err == nil {
			t.Errorf("%q: no error, %v", name, n)
		}
	}
}

func TestExtendTimeoutIsInMicroseconds(t *testing.T) {
	if got := ExtendTimeout(1500 * time.Millisecond); got != "EXTEND_TIMEOUT_USEC=1500000" {
		t.Error(got)
	}
}
