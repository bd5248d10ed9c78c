package daemon

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/sdnotify"
	"github.com/kvconn/kvconn/internal/daemon/web"
	"github.com/kvconn/kvconn/internal/version"
	"github.com/kvconn/kvconn/store/disk"
)

// testWait bounds what only a broken daemon does not do.
const testWait = 60 * time.Second

// running is a daemon in this process.
type running struct {
	Info
	t    *testing.T
	dir  string
	stop context.CancelFunc
	done chan error
}

// start runs a daemon on a fresh directory and waits until engines can connect.
func start(t *testing.T, change func(*Options)) *running {
	t.Helper()
	base := t.TempDir()
	ready := make(chan Info, 1)
	o := Options{
		Dir: filepath.Join(base, "store"), Socket: filepath.Join(base, "s"), HTTP: "127.0.0.1:0", MaxBytes: 64 << 20, HostBytes: 256 << 20,
		Ready: func(i Info) { ready <- i },
	}
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{t: t, dir: o.Dir, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- Run(ctx, o) }()
	select {
	case r.Info = <-ready:
	case err := <-r.done:
		t.Fatalf("the daemon ended: %v", err)
	case <-time.After(testWait):
		t.Fatal("the daemon is not ready")
	}
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(testWait):
			t.Error("the daemon does not stop")
		}
	})
	return r
}

// get returns status code and body.
func (r *running) get(path string) (code int, body string) {
	r.t.Helper()
	resp, err := http.Get("http://" + r.HTTP + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHTTPAnswersOnEveryRoute(t *testing.T) {
	r := start(t, nil)
	for path, want := range map[string]string{
		"/healthz": `"ok": true`, "/readyz": `"ready": true`, "/v1/status": `"tier": "disk"`, "/v1/namespaces": `"namespaces": []`, "/v1/tenants": `"tenants": []`,
		"/metrics": "kvconn_store_records 0\n", "/openapi.yaml": "openapi: 3.1.0",
	} {
		if code, body := r.get(path); code != http.StatusOK || !strings.Contains(body, want) {
			t.Errorf("%s: %d, want %q in\n%s", path, code, want, body)
		}
	}
	if code, _ := r.get("/debug/pprof/"); code != http.StatusNotFound {
		t.Errorf("profiles on the HTTP interface: %d", code)
	}
	s, err := FetchStatus(t.Context(), r.HTTP)
	if err != nil || s.Version != version.Server() || s.PID != os.Getpid() || s.Epoch != r.Epoch || !s.Health.OK || s.UptimeS <= 0 {
		t.Errorf("status %+v, %v", s, err)
	}
}

func TestInfoFileSaysHowToReachTheDaemonAndGoesWithIt(t *testing.T) {
	r := start(t, nil)
	info, err := ReadInfo(r.dir)
	if err != nil || info != r.Info || info.PID != os.Getpid() {
		t.Errorf("info %+v, %v; want %+v", info, err, r.Info)
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatal(err)
	}
	r.done <- nil
	if _, err := ReadInfo(r.dir); err == nil || !strings.Contains(err.Error(), "no daemon serves") {
		t.Errorf("after the stop: %v", err)
	}
	if _, err := os.Lstat(r.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the stop: %v", err)
	}
	if err := os.WriteFile(filepath.Join(r.dir, infoFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadInfo(r.dir); err == nil || !strings.Contains(err.Error(), infoFile) {
		t.Errorf("half a file: %v", err)
	}
}

func TestSecondDaemonOnTheDirectoryFails(t *testing.T) {
	r := start(t, nil)
	err := Run(t.Context(), Options{Dir: r.dir, Socket: r.Socket + "2", MaxBytes: 64 << 20})
	if !errors.Is(err, disk.ErrInUse) || !strings.Contains(err.Error(), "process") {
		t.Errorf("second daemon: %v, want %v and the process", err, disk.ErrInUse)
	}
	if info, err := ReadInfo(r.dir); err != nil || info != r.Info {
		t.Errorf("the first daemon's info: %+v, %v", info, err)
	}
}

func TestProfilesAreServedOnLoopbackOnly(t *testing.T) {
	r := start(t, func(o *Options) { o.Pprof = "127.0.0.1:0" })
	resp, err := http.Get("http://" + r.Pprof + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(b), "goroutine profile") {
		t.Errorf("%s, %v", b, err)
	}
	for _, addr := range []string{":0", "0.0.0.0:0", "[::]:0"} {
		if l, err := web.ListenProfiles(addr); err == nil {
			_ = l.Close()
			t.Errorf("%s was accepted", addr)
		}
	}
}

func TestServiceManagerIsToldStartStateWatchdogAndStop(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	m, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Close() }()
	env := map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "20000"}
	n, err := sdnotify.FromEnvironment(func(k string) string { return env[k] }, os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		b := make([]byte, 4096)
		for {
			if err := m.SetReadDeadline(time.Now().Add(testWait)); err != nil {
				t.Fatal(err)
			}
			got, err := m.Read(b)
			if err != nil {
				t.Fatalf("waiting for %q: %v", want, err)
			}
			if strings.Contains(string(b[:got]), want) {
				return
			}
		}
	}
	r := start(t, func(o *Options) { o.Notify = n })
	for _, want := range []string{"STATUS=opening the store", sdnotify.Ready, sdnotify.Watchdog} {
		expect(want)
	}
	r.stop()
	expect("STOPPING=1\nSTATUS=stopping: writing accepted saves and the snapshot\nEXTEND_TIMEOUT_USEC=30000000")
}

func TestStopEndsInTimeEvenIfTheDiskHangs(t *testing.T) { synctest.Test(t, testStopEndsInTime) }

func testStopEndsInTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var o Options
	o.EnsureDefaults()
	hang, began := make(chan struct{}), time.Now()
	cancel()
	err := within(ctx, &o, func() error {
		<-hang
		return nil
	})
	if took := time.Since(began); !errors.Is(err, ErrStopTimeout) || took != o.StopTimeout {
		t.Errorf("stop of a daemon that hangs: %v after %v, want %v after %v", err, took, ErrStopTimeout, o.StopTimeout)
	}
	close(hang)
	want := errors.New("close failed")
	if err := within(ctx, &o, func() error { return want }); !errors.Is(err, want) {
		t.Errorf("stop: %v, want %v", err, want)
	}
	if err := within(ctx, &o, ctx.Err); err != nil {
		t.Errorf("stop during the start: %v", err)
	}
}

func TestOptionsThatCannotWorkAreErrors(t *testing.T) {
	good := Options{Dir: "/d", Socket: "/s"}
	good.EnsureDefaults()
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*Options){
		"directory": func(o *Options) { o.Dir = "" }, "socket": func(o *Options) { o.Socket = "" },
		"load timeout": func(o *Options) { o.LoadTimeout = -1 }, "stop timeout": func(o *Options) { o.StopTimeout = -1 },
	} {
		o := good
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
}

func TestFetchStatusSaysWhatIsWrong(t *testing.T) {
	if _, err := FetchStatus(t.Context(), "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "is kvconnd serve running?") {
		t.Errorf("nobody there: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[1]")) })}
	go func() { _ = s.Serve(l) }()
	defer func() { _ = s.Close() }()
	if _, err := FetchStatus(t.Context(), l.Addr().String()); err == nil || !strings.Contains(err.Error(), "status from") {
		t.Errorf("another program's answer: %v", err)
	}
}
