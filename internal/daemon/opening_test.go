package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/connector"
	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/store/disk"
)

// While a store opens, people and the service manager hear how far it is; engines find no
// socket, which tells them at once.
func TestAStoreThatOpensSlowlyIsShownToAll(t *testing.T) {
	base := t.TempDir()
	name := filepath.Join(base, "n")
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	n, err := sdnotify.FromEnvironment(func(k string) string { return map[string]string{"NOTIFY_SOCKET": name}[k] }, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	opening, goOn, ready := make(chan struct{}), make(chan struct{}), make(chan struct{})
	o := Options{
		Dir: filepath.Join(base, "store"), Socket: filepath.Join(base, "s"), HTTP: "127.0.0.1:0", MaxBytes: 64 << 20, Notify: n,
		Ready: func(Info) { close(ready) },
		Store: func(so disk.Options) disk.Options {
			so.Progress("reading headers", 250, 1000)
			close(opening)
			<-goOn
			return so
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, o) }()
	<-opening
	info, err := ReadInfo(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Info: info, t: t}
	for path, want := range map[string]string{
		"/healthz": `"stage": "reading headers"`, "/readyz": `"done": 250`, "/v1/status": `"total": 1000`,
		"/metrics": "kvconn_opening_ratio 0.25\n", "/v1/residency": "the store is being opened", "/openapi.yaml": "openapi",
	} {
		code, body := r.get(path)
		ok := http.StatusOK
		if path == "/readyz" || path == "/v1/residency" {
			ok = http.StatusServiceUnavailable
		}
		if code != ok || !strings.Contains(body, want) {
			t.Errorf("%s: %d, want %q in\n%s", path, code, want, body)
		}
	}
	if _, err := os.Lstat(o.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is there before the store is open: %v", err)
	}
	heard := ""
	for b := make([]byte, 4096); !strings.Contains(heard, "EXTEND_TIMEOUT_USEC=") || !strings.Contains(heard, "reading headers, 250 of 1000 (25%)"); {
		if err := m.SetReadDeadline(time.Now().Add(testWait)); err != nil {
			t.Fatal(err)
		}
		k, err := m.Read(b)
		if err != nil {
			t.Fatalf("the service manager heard %q: %v", heard, err)
		}
		heard += string(b[:k])
	}
	close(goOn)
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	if code, body := r.get("/readyz"); code != http.StatusOK || strings.Contains(body, "stage") {
		t.Errorf("once it is open: %d %s", code, body)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// B21: what cannot be had is known before a store is opened, or made.
func TestAnAddressInUseCostsNoStore(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	base := t.TempDir()
	dir := filepath.Join(base, "store")
	for why, o := range map[string]Options{
		"port":        {Socket: filepath.Join(base, "s"), HTTP: l.Addr().String()},
		"profiles":    {Socket: filepath.Join(base, "s"), Pprof: l.Addr().String()},
		"socket path": {Socket: filepath.Join(base, strings.Repeat("s", 200))},
		"socket":      {Socket: "/proc/x.sock"},
	} {
		o.Dir, o.MaxBytes = dir, 64<<20
		if err := Run(t.Context(), o); err == nil {
			t.Errorf("%s: it ran", why)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: there is a store directory: %v", why, err)
		}
		if left, _ := filepath.Glob(filepath.Join(base, "s.???")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", why, left)
		}
	}
}

// B34: a directory that others use is not a store's.
func TestADirectoryOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	home := filepath.Join(dir, "thesis.tex")
	if err := os.WriteFile(home, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), Options{Dir: dir, Socket: filepath.Join(t.TempDir(), "s"), MaxBytes: 64 << 20})
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("%v", err)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	for _, ours := range []string{"lost+found", "segments"} {
		if err := errors.Join(os.RemoveAll(home), os.Mkdir(filepath.Join(dir, ours), 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := RefuseForeign(dir); err != nil {
			t.Errorf("with %s: %v", ours, err)
		}
	}
	if err := errors.Join(os.WriteFile(home, nil, 0o600), RefuseForeign(dir)); err != nil {
		t.Errorf("a store with one more file: %v", err)
	}
}

// B34: records that a lower cap evicts while the store is opened are mentioned.
func TestRecordsEvictedAtTheStartAreMentioned(t *testing.T) {
	s, ns := residencyStore(t, 64<<20)
	for prompt := range 40 {
		residencySave(t, s, ns, residencyChain(connector.Scope{}, prompt, 32), 0, 1)
	}
	dir := s.Stats().Dir
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var log testlog.Text
	start(t, func(o *Options) {
		o.Dir, o.MaxBytes, o.NoMinFree, o.Logger = dir, 12<<20, true, slog.New(slog.NewTextHandler(&log, nil))
	})
	if !strings.Contains(log.String(), "records were evicted while the store was opened") {
		t.Errorf("nothing is said:\n%s", &log)
	}
}
