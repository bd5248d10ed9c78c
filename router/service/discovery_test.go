package service

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/discover"
)

// A router without ranks finds engines as they come and go, and sends them requests.
func TestARouterFindsItsRanks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ranks.yaml")
	engines := func(list ...*enginetest.Engine) {
		text := "ranks: []\n"
		if len(list) > 0 {
			text = "ranks:\n"
		}
		for _, e := range list {
			text += fmt.Sprintf("  - {model: m, endpoint: %q}\n", e.URL)
		}
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	a, b := enginetest.New(t, "m"), enginetest.New(t, "m")
	engines()
	source := discover.Source{File: path, Interval: discover.Duration(100 * time.Millisecond)}
	source.EnsureDefaults()
	r := start(t, func(o *Options) { o.Discovery.Sources = []discover.Source{source} })
	answers := func(e *enginetest.Engine) {
		t.Helper()
		wait.For(t, "an answer of the engine", func() bool {
			var got RouteAnswer
			if status, _ := r.do("POST", "/v1/route", m{"model": "m", "token_ids": prompt(1, 40)}, &got); status != 200 {
				return false
			}
			r.do("POST", "/v1/requests/"+got.Request+"/finished", nil, nil)
			return got.Endpoint == e.URL
		})
	}
	if status, _ := r.do("GET", "/readyz", nil, nil); status != 503 {
		t.Errorf("ready without ranks: %d", status)
	}
	engines(a)
	answers(a)
	engines(b)
	answers(b)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var h Health
	wait.For(t, "a verdict", func() bool { r.do("GET", "/healthz", nil, &h); return !h.OK })
	if h.Reasons[0].Code != "discovery_failing" || h.Reasons[0].Detail != "1 of 1 sources of ranks cannot be read" {
		t.Errorf("%+v", h)
	}
	// Anybody may ask for that, so paths and addresses are elsewhere.
	if _, text := r.do("GET", "/healthz", nil, nil); strings.Contains(text, path) {
		t.Errorf("/healthz tells %s", text)
	}
	if _, text := r.do("GET", "/v1/status", nil, nil); !strings.Contains(text, path) {
		t.Errorf("/v1/status does not tell %s: %s", path, text)
	}
	answers(b)
	if _, text := r.do("GET", "/metrics", nil, nil); !strings.Contains(text, "kvconn_router_discovered_ranks 1") || !strings.Contains(text, "kvconn_router_discovery_failing_sources 1") {
		t.Error(text)
	}
}
