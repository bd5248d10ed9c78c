package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvconn/kvconn/internal/cli/settings"
	"github.com/kvconn/kvconn/internal/cli/terminal"
	"github.com/kvconn/kvconn/internal/logging"
	"github.com/kvconn/kvconn/internal/testkit/enginetest"
	"github.com/kvconn/kvconn/internal/testkit/testlog"
	"github.com/kvconn/kvconn/internal/testkit/wait"
	"github.com/kvconn/kvconn/router/policy"
	"github.com/kvconn/kvconn/router/policy/published"
)

// routerFileOf writes a router's file.
func routerFileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "router.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Flags override the environment, which overrides the file, which overrides the defaults.
func TestRouterSettingsPrecedence(t *testing.T) {
	file := routerFileOf(t, `
policy: kv-aware
predict_ttl: 3s
approximate_ttl: 4s
overlap_loads: true
ranks: [{model: m, endpoint: "http://a:1"}]
`)
	t.Setenv("KVCONN_ROUTER_PREDICT_TTL", "2s")
	t.Setenv("KVCONN_ROUTER_TOKEN", "secret")
	for name, args := range map[string][]string{
		"by flag":        {"router", "--config", file},
		"by environment": {"router"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "by environment" {
				t.Setenv("KVCONN_ROUTER_CONFIG", file)
			}
			c := new(cli)
			p, err := newParser(t.Context(), c, &terminal.Streams{Out: new(bytes.Buffer), Err: new(bytes.Buffer)}, new(settings.Resolver), func(int) {})
			if err != nil {
				t.Fatal(err)
			}
			args := append(args, "--policy", "load", "--rank", "id=4,model=m,endpoint=http://b:1,events=tcp://b:5557")
			if _, err := p.Parse(args); err != nil {
				t.Fatal(err)
			}
			s := c.Router
			if s.Policy != "load" || s.PredictTTL != 2*time.Second || s.ApproximateTTL != 4*time.Second || !s.OverlapLoads || s.IndexBytes != 0 {
				t.Errorf("%+v", s)
			}
			o, err := s.Options(logging.New(io.Discard, "info", "text"))
			if err != nil || len(o.Ranks) != 2 || o.Ranks[0].Endpoint != "http://a:1" || o.Ranks[1].ID != 4 || o.Token != "secret" {
				t.Errorf("%+v %v", o, err)
			}
		})
	}
}

// Every flag reaches the service.
func TestRouterFlagsAreTheOptions(t *testing.T) {
	c := new(cli)
	p, err := newParser(t.Context(), c, &terminal.Streams{Out: io.Discard, Err: io.Discard}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Parse([]string{
		"router", "--http", "127.0.0.1:1", "--engine-key", "key", "--policy", "conversation/cost", "--placement", "least-tokens", "--beta", "2", "--match-rate", "0.3",
		"--decode-weight", "4", "--balance-weight", "5", "--overlap-loads", "--always-load", "--assume-kv-reuse", "--predict-ttl", "6s", "--approximate-ttl", "7s", "--request-ttl", "8s",
		"--index-bytes", "9MiB", "--max-prompt-tokens", "10", "--max-body-bytes", "11", "--tokenize-timeout", "12s", "--max-tries", "13", "--first-byte-timeout", "14s",
		"--stream-timeout", "15s", "--health-path", "/16", "--health-interval", "0s", "--drain-timeout", "18s", "--drain-delay", "4s", "--node-token", "node", "--rank-metrics",
		"--otlp-endpoint", "http://127.0.0.1:4318", "--otlp-headers", "a=b", "--otlp-trace-ratio", "0.5",
	}); err != nil {
		t.Fatal(err)
	}
	o, err := c.Router.Options(logging.New(io.Discard, "info", "text"))
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"addresses and keys": o.HTTP == "127.0.0.1:1" && o.Route.NodeToken == "node" && o.Token == "" && o.EngineKey == "key",
		"the policy": o.Policy.Name == "conversation/cost" && o.Policy.Conversation.Placement == published.PlaceLeastTokens &&
			o.Policy.KVAware == published.KVAwareOptions{Beta: 2, MatchRate: 0.3} && o.Policy.Cost == policy.CostOptions{DecodeWeight: 4, BalanceWeight: 5, OverlapLoads: true, AlwaysLoad: true},
		"decisions": o.Route.Load.AssumeKVReuse && o.Route.Load.TTL == 8*time.Second && o.Route.PredictTTL == 6*time.Second && o.Route.ApproximateTTL == 7*time.Second &&
			o.Route.Index.MaxBytes == 9<<20 && o.Route.MaxPromptTokens == 10,
		"the proxy":          o.MaxBodyBytes == 11 && o.TokenizeTimeout == 12*time.Second && o.MaxTries == 13 && o.FirstByteTimeout == 14*time.Second && o.IdleTimeout == 15*time.Second,
		"traces":             o.Spans.URL == "http://127.0.0.1:4318/v1/traces" && o.Spans.Headers["a"] == "b" && o.Spans.Ratio == 0.5 && o.Spans.Version != "",
		"health and the end": o.HealthPath == "/16" && o.HealthInterval < 0 && o.DrainTimeout == 18*time.Second && o.DrainDelay == 4*time.Second && o.RankMetrics,
	} {
		if !ok {
			t.Errorf("%s: %+v", what, o)
		}
	}
}

func TestRouterUsageErrorsSayWhatToDo(t *testing.T) {
	for want, args := range map[string][]string{
		"set a token":        {"router", "--http", "0.0.0.0:1"},
		"configuration file": {"router", "--config", "/nowhere.yaml"},
		`did you mean`:       {"router", "--config", routerFileOf(t, "polic: x")},
		"policy \"best\"":    {"router", "--policy", "best"},
		"rank \"id=1\"":      {"router", "--rank", "id=1"},
		"model is empty":     {"router", "--config", routerFileOf(t, "ranks: [{id: 1}]")},
		"unknown field":      {"router", "--config", routerFileOf(t, "ranks: [{nods: x}]")},
		"the engines' key":   {"router", "--config", routerFileOf(t, "engine_key: \"key\\n\"")},
		"must be one of":     {"router", "--placement", "best"},
		"the rank exists":    {"router", "--http", "127.0.0.1:0", "--rank", "id=0,model=m,endpoint=http://a", "--rank", "id=0,model=m,endpoint=http://a"},
	} {
		if status, out, errs := kvconnd(args...); status == 0 || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: status %d, %q, %q; want %q", args, status, out, errs, want)
		}
	}
}

// get returns what an address answers, "" if nothing.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return string(b)
}

// A mistake in one of many ranks is found by its place.
func TestAMistakeInARankNamesFileAndPlace(t *testing.T) {
	file := routerFileOf(t, "ranks:\n- {model: m, endpoint: \"http://h:1\"}\n- {modle: m, endpoint: \"http://h:2\"}\n")
	for _, args := range [][]string{{"router", "--config", file}, {"config", "router", "--config", file}} {
		if _, _, errs := kvconnd(args...); !strings.Contains(errs, `ranks[1]: rank: unknown field "modle", did you mean "model"?`) || args[0] == "router" && !strings.Contains(errs, file) {
			t.Errorf("%q: %s", args, errs)
		}
	}
}

func TestServeHasARouterForItsNode(t *testing.T) {
	e := enginetest.New(t, "m")
	file := routerFileOf(t, "http: 127.0.0.1:0\ndrain_delay: 0s\nranks: [{model: m, endpoint: \""+e.URL+"\"}, {model: m, endpoint: \"http://192.0.2.1:8000\"}]\n")
	base := t.TempDir()
	c := new(cli)
	ctx, cancel := context.WithCancel(t.Context())
	var log testlog.Text
	p, err := newParser(ctx, c, &terminal.Streams{Out: io.Discard, Err: &log}, new(settings.Resolver), func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	command, err := p.Parse([]string{"serve", "--dir", filepath.Join(base, "d"), "--socket", filepath.Join(base, "s"), "--http", "127.0.0.1:0", "--max-bytes", "64MiB", "--host-bytes", "64MiB", "--router", file})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- command.Run() }()
	address := regexp.MustCompile(`msg="the router listens" part=router http=(\S+)`)
	wait.For(t, "a ready rank that follows the daemon's store", func() bool {
		m := address.FindStringSubmatch(log.String())
		if m == nil {
			return false
		}
		ranks := get("http://" + m[1] + "/v1/ranks")
		return strings.Contains(ranks, `"ready":true`) && strings.Contains(ranks, `"node":"local"`) && strings.Contains(ranks, `"connected":true`)
	})
	m := address.FindStringSubmatch(log.String())
	if elsewhere := get("http://" + m[1] + "/v1/ranks/1"); !strings.Contains(elsewhere, "192.0.2.1") || strings.Contains(elsewhere, "node") {
		t.Errorf("a rank on another machine: %s", elsewhere)
	}
	if !strings.Contains(log.String(), "no node") {
		t.Errorf("that is not said: %s", log.String())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServeRefusesARouterThatCannotWork(t *testing.T) {
	base := t.TempDir()
	status, _, errs := kvconnd("serve", "--dir", filepath.Join(base, "d"), "--socket", filepath.Join(base, "s"), "--http", "off", "--router", routerFileOf(t, "policy: best"))
	if status == 0 || !strings.Contains(errs, `policy "best"`) {
		t.Errorf("status %d, %q", status, errs)
	}
}
