package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/daemon/opening"
	"github.com/kvconn/kvconn/store/disk"
)

func TestHealthzIs503WithReasons(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	d := &daemon{health: health.New(log), opening: opening.New(log, time.Now(), nil)}
	d.health.Observe(time.Now(), &health.Observation{Stats: disk.Stats{Barriers: 3, BarrierErrors: 3}})
	w := httptest.NewRecorder()
	d.serveHealth(w, nil)
	var got health.State
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusServiceUnavailable || len(got.Reasons) != 1 || got.Reasons[0].Code != "journal_failing" {
		t.Errorf("%d %s, %v", w.Code, w.Body, err)
	}
	w = httptest.NewRecorder()
	d.serveReady(w, nil)
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("ready before it is: %d", w.Code)
	}
}

// Where a daemon has a token, only probes and the description do without it.
func TestATokenKeepsStrangersOut(t *testing.T) {
	r := start(t, func(o *Options) { o.HTTPToken = "secret" })
	ask := func(path, token string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.HTTP+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for path, open := range map[string]bool{"/healthz": true, "/readyz": true, "/openapi.yaml": true, "/v1/status": false, "/v1/residency": false, "/v1/namespaces": false, "/v1/tenants": false, "/metrics": false} {
		for token, ok := range map[string]bool{"": open, "wrong": open, "secret": true} {
			if got := ask(path, token); (got != http.StatusUnauthorized) != ok {
				t.Errorf("%s with token %q: %d", path, token, got)
			}
		}
	}
	if _, err := FetchStatus(t.Context(), r.HTTP); !errors.Is(err, ErrToken) {
		t.Error(err)
	}
	if _, err := FetchStatusAs(t.Context(), r.HTTP, "secret"); err != nil {
		t.Error(err)
	}
}

// An address that is not free is known by what to do about it, not only by the system's word.
func TestAnAddressThatCannotBeHadComesWithAHint(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	base := t.TempDir()
	err = Run(t.Context(), Options{Dir: filepath.Join(base, "d"), Socket: filepath.Join(base, "s"), HTTP: l.Addr().String()})
	if err == nil || !strings.Contains(err.Error(), "another daemon or program has it: set http to another") {
		t.Error(err)
	}
	for cause, want := range map[error]string{syscall.EACCES: "below 1024", syscall.EADDRNOTAVAIL: "no such address", syscall.EMFILE: ""} {
		if got := bindHint(&net.OpError{Op: "listen", Err: os.NewSyscallError("bind", cause)}); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%v: %q", cause, got)
		}
	}
}

// A user who may not write where the socket is to be is given a path that works.
func TestASocketThatMayNotBeMadeComesWithAPath(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write anywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	err := Run(t.Context(), Options{Dir: t.TempDir(), Socket: filepath.Join(dir, "s")})
	if err == nil || !strings.Contains(err.Error(), "permission denied; set socket to a path in a folder that this user may write, such as /") {
		t.Error(err)
	}
}
