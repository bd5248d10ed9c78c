package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/internal/config"
	"github.com/kvconn/kvconn/internal/daemon"
	"github.com/kvconn/kvconn/internal/daemon/health"
	"github.com/kvconn/kvconn/internal/locate"
	"github.com/kvconn/kvconn/leader"
)

// exampleStatus is a daemon at work. uptimeS moves its counters on.
func exampleStatus(uptimeS float64) *daemon.Status {
	n := uint64(uptimeS)
	s := &daemon.Status{Version: "kvconnd/1.2.3", Epoch: "00000000000000ff", PID: 42, UptimeS: uptimeS, Health: health.State{OK: true}}
	s.Totals.Requests = leader.Stats{QueriedTokens: 1000 * n, OfferedTokens: 750 * n}
	return s
}

// serveStatus answers with the given looks, then ends the watch.
func serveStatus(t *testing.T, end context.CancelFunc, looks ...*daemon.Status) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if len(looks) == 1 {
			defer end()
		}
		if len(looks) == 0 {
			return
		}
		if looks[0] == nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		} else if err := json.NewEncoder(w).Encode(looks[0]); err != nil {
			t.Error(err)
		}
		looks = looks[1:]
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

func TestWatchPrintsABlockPerIntervalAndOutlivesTheDaemon(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		addr := serveStatus(t, cancel, exampleStatus(10), nil, exampleStatus(12), exampleStatus(14), exampleStatus(16))
		c := statusCmd{Watch: true, Interval: minWatchInterval, JSON: asJSON}
		var out bytes.Buffer
		if err := c.watch(ctx, locate.Settings{HTTP: addr}, &out); err != nil {
			t.Fatal(err)
		}
		text := out.String()
		if asJSON {
			lines := strings.Split(strings.TrimSpace(text), "\n")
			var s daemon.Status
			if err := json.Unmarshal([]byte(lines[0]), &s); err != nil || s.PID != 42 || !strings.Contains(lines[1], `"error"`) {
				t.Errorf("%v\n%s", err, text)
			}
			continue
		}
		// The look after the missing one has none to compare with.
		if strings.Count(text, "epoch") < 3 || strings.Count(text, "\nnow ") < 1 || !strings.Contains(text, "503") || strings.Contains(text, "\x1b") {
			t.Errorf("watch printed\n%s", text)
		}
	}
}

// A daemon that was killed leaves its address behind, which another may have taken.
func TestStatusOfADirectoryIsOfItsOwnDaemon(t *testing.T) {
	dir := t.TempDir()
	s := exampleStatus(1)
	for _, epoch := range []string{s.Epoch, "another"} {
		info := fmt.Sprintf(`{"pid":7,"epoch":%q,"http":%q}`, epoch, serveStatus(t, func() {}, s))
		if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
		own := epoch == s.Epoch
		if status, _, errs := kvconnd("status", "--dir", dir); (status == 0) != own || own == strings.Contains(errs, "was killed") {
			t.Errorf("epoch %s: status %d, %q", epoch, status, errs)
		}
	}
}

func TestWatchShowsTheTopOfWhatATerminalHasNoRoomFor(t *testing.T) {
	for _, tc := range []struct {
		text          string
		width, height int
		want          string
	}{
		{"a\nb\n\n", 80, 2, "a\nb\n"},
		{"a\nb\nc\n", 80, 2, "a\n(2 more lines)\n"},
		{"a\nb\nc\n", 80, 3, "a\nb\nc\n"},
		{"a\nbbbbbb\nc\n", 3, 3, "a\n(2 more lines)\n"},
		{"a\nbbbbbb\nc\n", 3, 4, "a\nbbbbbb\nc\n"},
		{"a\néééééé\n", 6, 2, "a\néééééé\n"},
	} {
		if got := crop(tc.text, tc.width, tc.height); got != tc.want {
			t.Errorf("%q on %d by %d: %q, want %q", tc.text, tc.width, tc.height, got, tc.want)
		}
	}
}

func TestStatusOfAnUnhealthyDaemonIsAnError(t *testing.T) {
	s := exampleStatus(1)
	s.Health = health.State{Reasons: []health.Reason{{Code: "no_room", Detail: "saves find no room"}}}
	status, out, errs := kvconnd("status", "--http", serveStatus(t, func() {}, s))
	if status == 0 || !strings.Contains(out, "saves find no room") || !strings.Contains(errs, "unhealthy") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

// The commands find the daemon by the settings that it has.
func TestStatusAndConfigFindTheDaemonByItsSettings(t *testing.T) {
	s := exampleStatus(1)
	addr := serveStatus(t, func() {}, s, s, s, s)
	base := t.TempDir()
	file := filepath.Join(base, "kvconnd.yaml")
	if err := os.WriteFile(file, []byte("http: "+addr+"\nsocket: "+base+"/s.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(args ...string) {
		t.Helper()
		if status, out, errs := kvconnd(append([]string{"status"}, args...)...); status != 0 || !strings.Contains(out, "kvconnd/1.2.3") {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
	config := func(args ...string) {
		t.Helper()
		for _, engine := range []string{"vllm", "sglang"} {
			status, out, errs := kvconnd(append([]string{"config", engine}, args...)...)
			if status != 0 || !strings.Contains(out, `"socket":"`+base+`/s.sock"`) || !strings.Contains(errs, "no daemon can be reached") {
				t.Errorf("%q: status %d, %s %s", args, status, out, errs)
			}
		}
	}
	ask("--config", file)
	config("--config", file)
	t.Setenv("KVCONN_CONFIG", file)
	ask()
	config()
	t.Setenv("KVCONN_CONFIG", "")
	t.Setenv("KVCONN_HTTP", addr)
	ask()
	ask("--http", "http://"+addr, "--dir", base)
	if err := os.WriteFile(filepath.Join(base, "daemon.json"), []byte(`{"socket":"`+base+`/s.sock"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	config("--dir", base)
}

// The same command shows a router.
func TestStatusOfARouterIsShown(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/v1/ranks":
			fmt.Fprint(w, `{"ranks":[{"id":7,"model":"m","endpoint":"http://h:1","ready":true}]}`)
		default:
			fmt.Fprint(w, `{"version":"kvconnd/1","policy":"cost","models":["m"],"ranks":1,"ready":1,"health":{"ok":true}}`)
		}
	}))
	t.Cleanup(s.Close)
	if status, _, errs := kvconnd("status", "--http", s.URL); status == 0 || !strings.Contains(errs, "KVCONN_ROUTER_TOKEN") {
		t.Errorf("without the token: status %d, %s", status, errs)
	}
	t.Setenv("KVCONN_ROUTER_TOKEN", "secret")
	for _, flags := range [][]string{nil, {"--json"}} {
		if status, out, errs := kvconnd(append([]string{"status", "--http", s.URL}, flags...)...); status != 0 || !strings.Contains(out, "cost") || !strings.Contains(out, "http://h:1") {
			t.Errorf("status %d, %s %s", status, out, errs)
		}
	}
}

// Whoever asks for a router's status without an address has its token sent to the router and nobody else.
func TestStatusOfARouterAtTheUsualAddress(t *testing.T) {
	l, err := net.Listen("tcp", config.DefaultHTTP)
	if err != nil {
		t.Skip("the usual address is in use: ", err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/ranks" {
			fmt.Fprint(w, `{"ranks":[]}`)
			return
		}
		fmt.Fprint(w, `{"version":"kvconnd/1","policy":"cost","models":["m"],"ranks":0,"ready":0,"health":{"ok":true}}`)
	}))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	if status, out, errs := kvconnd("status"); status != 0 || !strings.Contains(out, "cost") {
		t.Errorf("status %d, %s %s", status, out, errs)
	}
	if status, _, errs := kvconnd("status", "--watch"); status == 0 || !strings.Contains(errs, "--watch shows daemons") {
		t.Errorf("status %d, %s", status, errs)
	}
}
