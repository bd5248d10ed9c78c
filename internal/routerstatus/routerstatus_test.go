package routerstatus

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kvconn/kvconn/router/registry"
	"github.com/kvconn/kvconn/router/service"
)

// run runs a router until the test ends, and returns its address.
func run(t *testing.T, token string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- service.Run(ctx, service.Options{
			HTTP: "127.0.0.1:0", Token: token, Version: "kvconnd/1", HealthInterval: -1, DrainDelay: -1, Logger: slog.New(slog.DiscardHandler),
			Ranks: []registry.Rank{{ID: 3, Model: "org/m", Endpoint: "http://h:1"}, {ID: 4, Model: "org/m", Endpoint: "http://h:2", Draining: true}},
			Ready: func(addr string) { ready <- addr },
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return <-ready
}

func TestARoutersStatusIsPrinted(t *testing.T) {
	addr := run(t, "secret")
	if _, err := Fetch(t.Context(), addr, "wrong"); !errors.Is(err, ErrToken) {
		t.Error(err)
	}
	for _, at := range []string{addr, "http://" + addr + "/"} {
		s, err := Fetch(t.Context(), at, "secret")
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Print(&out, s); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"router, up", "policy cost", "org/m", "ranks      2, 1 ready", "http://h:1", "no: draining", "health     good", "blocks     16 tokens, assumed: org/m"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is missing:\n%s", want, &out)
			}
		}
	}
}

func TestWhatIsNoRouterIsAnError(t *testing.T) {
	for _, body := range []string{"", "{", "[]", `{"ranks":[]}`} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		if _, err := Fetch(t.Context(), s.URL, ""); err == nil {
			t.Errorf("%q is a status", body)
		}
		s.Close()
	}
	if _, err := Fetch(t.Context(), "127.0.0.1:1", ""); err == nil {
		t.Error("nobody is asked")
	}
}

func TestNamesCannotChangeTheTerminal(t *testing.T) {
	s := &Status{Status: service.Status{Models: []string{"evil\x1b[2J"}}}
	var out bytes.Buffer
	if err := Print(&out, s); err != nil || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%v %q", err, &out)
	}
}
