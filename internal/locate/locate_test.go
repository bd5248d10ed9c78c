package locate

import (
	"encoding/json"
	"errors"
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
)

// written is a store directory whose daemon has left the given information.
func written(t *testing.T, info string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "daemon.json"), []byte(info), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTheSocketIsTheNearestThatIsKnown(t *testing.T) {
	dir := written(t, `{"socket":"/run/of-dir.sock"}`)
	for want, s := range map[string]Settings{
		"/run/set.sock":        {Socket: "/run/set.sock", Dir: dir},
		"/run/of-dir.sock":     {Dir: dir},
		config.DefaultSocket(): {Dir: t.TempDir()},
	} {
		if got, err := s.SocketPath(); err != nil || got != want {
			t.Errorf("%+v: %s, %v; want %s", s, got, err, want)
		}
	}
	t.Chdir(dir)
	if got, err := (Settings{Socket: "s"}).SocketPath(); err != nil || !filepath.IsAbs(got) || filepath.Base(got) != "s" {
		t.Errorf("%s, %v", got, err)
	}
}

func TestWhetherADaemonListensIsFound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	if err := Listens(t.Context(), path); err == nil {
		t.Error("nobody listens")
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Listens(t.Context(), path); err != nil {
		t.Error(err)
	}
	_ = l.Close()
}

func TestStatusIsAskedWhereTheDaemonIs(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(daemon.Status{Epoch: "e", PID: 7})
	}))
	defer s.Close()
	addr := strings.TrimPrefix(s.URL, "http://")
	dir := written(t, fmt.Sprintf(`{"epoch":"e","http":%q}`, addr))
	for _, c := range []struct {
		settings Settings
		failure  string
	}{
		{Settings{HTTP: addr}, ""},
		{Settings{HTTP: s.URL}, ""},
		{Settings{HTTP: s.URL + "/"}, ""},
		{Settings{Dir: dir}, ""},
		{Settings{Dir: dir, HTTP: "127.0.0.1:0"}, ""},
		{Settings{Dir: dir, HTTP: "off"}, ""},
		{Settings{Dir: t.TempDir(), HTTP: addr}, "no daemon serves"},
		{Settings{Dir: written(t, `{"epoch":"e"}`)}, "http: off"},
		{Settings{Dir: written(t, fmt.Sprintf(`{"epoch":"f","http":%q}`, addr))}, "was killed"},
		{Settings{HTTP: "ftp://x"}, "ftp"},
	} {
		got, err := c.settings.Status(t.Context())
		if c.failure == "" && (err != nil || got.PID != 7) || c.failure != "" && (err == nil || !strings.Contains(err.Error(), c.failure)) {
			t.Errorf("%+v: %v, want %q", c.settings, err, c.failure)
		}
	}
}

// People point the command at a router, whose interface looks much the same.
func TestTheStatusOfARouterSaysSo(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"version":"kvconnd/1","policy":"cost","ranks":3,"ready":2}`)
	}))
	defer s.Close()
	// A caller that asks the router itself, with the router's token, has to ask the address that answered.
	for _, at := range []Settings{{HTTP: s.URL}, {Dir: written(t, fmt.Sprintf(`{"epoch":"e","http":%q}`, s.URL))}} {
		var router *RouterError
		if _, err := at.Status(t.Context()); !errors.As(err, &router) || router.Address != s.URL {
			t.Errorf("%v", err)
		}
	}
	if _, err := (Settings{HTTP: s.URL}).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "is a router") || strings.Contains(err.Error(), "json") {
		t.Error(err)
	}
}
